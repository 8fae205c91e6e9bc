# make            build/moe-engine, build/ngx_http_moe_module.so
# make test       unit, golden and server tests
# make clients    conformance with other people's clients (t/clients; fetches them from PyPI)
# make bench      measurements (t/bench)
# make install    DESTDIR and PREFIX as usual

SHELL := /bin/bash
BUILD ?= build
CC ?= gcc
OPTIMIZE ?= -O2 -g
WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter -Wno-format-truncation
# Floating point is part of the contract: no contraction, no reassociation beyond what is written.
CFLAGS := -std=c11 -D_GNU_SOURCE $(OPTIMIZE) $(WARN) -fno-math-errno -ffp-contract=off -pthread -I. $(EXTRA_CFLAGS)
LDLIBS := -ljansson -lpcre2-8 -lutf8proc -lcrypto -lm -pthread
VERSION := 0.1.0

PREFIX ?= /usr/local
MODULES_DIR ?= $(PREFIX)/lib/nginx/modules
NGINX ?= /usr/sbin/nginx

.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: all engine module test unit golden server clients bench lint format install clean

ENGINE_SOURCES := $(sort $(shell find engine kernels -name '*.c' 2>/dev/null))
ENGINE_OBJECTS := $(ENGINE_SOURCES:%.c=$(BUILD)/%.o)
LIBRARY := $(BUILD)/libmoe.a
UNIT_SOURCES := $(sort $(wildcard t/unit/*_test.c))
UNIT_TESTS := $(UNIT_SOURCES:t/unit/%.c=$(BUILD)/unit/%)
GOLDEN_SOURCES := $(sort $(wildcard t/golden/*_test.c))
GOLDEN_TESTS := $(GOLDEN_SOURCES:t/golden/%.c=$(BUILD)/golden/%)

all: engine module

engine: $(BUILD)/moe-engine

# Instruction sets are chosen at run time: a file's name says what it is compiled for.
$(BUILD)/%_avx512.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mavx2 -mf16c
$(BUILD)/%_avx2.o: ISA := -mavx2 -mfma -mf16c

# The unrolled kernels take minutes to compile with sanitizers, and their tests check every border.
$(BUILD)/kernels/cpu/%.o: PLAIN := -fno-sanitize=all

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(ISA) $(PLAIN) -DMOE_VERSION='"$(VERSION)"' -MMD -MP -c $< -o $@

$(LIBRARY): $(filter-out $(BUILD)/engine/main.o,$(ENGINE_OBJECTS))
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/moe-engine: $(BUILD)/engine/main.o $(LIBRARY)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ $(LDLIBS) -o $@

module: $(BUILD)/ngx_http_moe_module.so

# The module is built by nginx's own configure and make, out of both trees.
NGINX_SOURCE ?= /usr/share/nginx/src
NGINX_OBJECTS := $(abspath $(BUILD))/nginx
MODULE_SOURCES := config $(wildcard *.c *.h http/*.c http/*.h engine/channel/*.c engine/channel/*.h) \
	$(addprefix engine/core/,buffer.c buffer.h clock.h error.c error.h)

$(NGINX_OBJECTS)/Makefile: config
	@mkdir -p $(BUILD)
	cd $(NGINX_SOURCE) && . ./conf_flags && MOE_ENGINE_PATH=$(PREFIX)/sbin/moe-engine \
		bash ./configure "$${NGX_CONF_FLAGS[@]}" --builddir=$(NGINX_OBJECTS) \
		--with-cc-opt="$(OPTIMIZE) $(EXTRA_CFLAGS)" --with-ld-opt="$(LDFLAGS)" \
		--add-dynamic-module=$(CURDIR) >$(NGINX_OBJECTS).log

$(BUILD)/ngx_http_moe_module.so: $(NGINX_OBJECTS)/Makefile $(MODULE_SOURCES)
	$(MAKE) -C $(NGINX_SOURCE) -f $(NGINX_OBJECTS)/Makefile modules
	cp $(NGINX_OBJECTS)/ngx_http_moe_module.so $@

$(BUILD)/unit/%: $(BUILD)/t/unit/%.o $(LIBRARY)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ $(LDLIBS) -lcmocka -o $@

$(BUILD)/golden/%: $(BUILD)/t/golden/%.o $(LIBRARY)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ $(LDLIBS) -lcmocka -o $@

unit: $(UNIT_TESTS)
	@for t in $(UNIT_TESTS); do echo "== $$t"; $$t || exit 1; done

golden: $(GOLDEN_TESTS)
	@for t in $(GOLDEN_TESTS); do echo "== $$t"; $$t || exit 1; done

# Server tests: real nginx, real engine, the demo model.
server: all
	prove -j2 t/

clients: all
	BUILD=$(BUILD) t/clients/run

test: unit golden server

bench: all
	@for b in $(sort $(wildcard t/bench/*.pl)); do echo "== $$b"; perl -It/lib $$b || exit 1; done

install: all
	install -D -m 755 $(BUILD)/moe-engine $(DESTDIR)$(PREFIX)/sbin/moe-engine
	install -D -m 644 $(BUILD)/ngx_http_moe_module.so $(DESTDIR)$(MODULES_DIR)/ngx_http_moe_module.so
	install -d $(DESTDIR)$(PREFIX)/share/ngx_http_moe/models/nginx-directives-moe
	install -m 644 conf/*.conf $(DESTDIR)$(PREFIX)/share/ngx_http_moe
	install -m 644 conf/models/nginx-directives-moe/* \
		$(DESTDIR)$(PREFIX)/share/ngx_http_moe/models/nginx-directives-moe

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
