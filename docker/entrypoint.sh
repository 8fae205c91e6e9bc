#!/bin/sh
# Writes the configuration for the model given as first argument (default: the demo model) and
# becomes nginx.
set -eu

share=/usr/share/ngx_http_moe
model=${1:-$share/models/nginx-directives-moe}

sed -e "s|build/ngx_http_moe_module.so|/usr/lib/nginx/modules/ngx_http_moe_module.so|" \
    -e "s|build/moe-engine|/usr/sbin/moe-engine|" \
    -e "s|moe_model demo conf/models/nginx-directives-moe |moe_model demo \"$model\" |" \
    -e "s|build/run/error.log|/dev/stderr|; s|build/run/access.log|/dev/stdout|" \
    -e "s|build/run/|/var/lib/nginx/|" \
    $share/demo.conf >/etc/nginx/nginx.conf
[ -z "${1:-}" ] || sed -i '/^ *context [0-9]*;/d' /etc/nginx/nginx.conf
exec nginx -e /dev/stderr -g 'daemon off; user www-data;'
