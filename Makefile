# make            build/moe-engine, build/ngx_http_moe_module.so
# make test       unit, golden and server tests
# make sanitize   unit and server tests with ASan and UBSan in engine and module
# make tsan       tests of what runs in threads, with TSan in the engine
# make fuzz       every fuzz target for FUZZ_SECONDS (needs clang)
# make clients    conformance with other people's clients (t/clients; fetches them from PyPI)
# make nightly    long tests: endurance, kills, reloads, connections (t/nightly; half an hour)
# make load       build/load, the load generator (t/bench/load)
# make bench      measurements (t/bench)
# make install    DESTDIR and PREFIX as usual

SHELL := /bin/bash
BUILD ?= build
OPTIMIZE ?= -O2 -g
WARN := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter \
	-Wno-format-truncation -Wno-unknown-warning-option
# SANITIZE=address,undefined instruments what is built: an argument of -fsanitize, for a BUILD of its own.
SANITIZE ?=
instrument = $(if $(1),-fsanitize=$(1) -fno-sanitize-recover=all -fno-omit-frame-pointer)
INSTRUMENT := $(call instrument,$(SANITIZE))

# Floating point is part of the contract: no contraction, no reassociation beyond what is written.
CFLAGS := -std=c11 -D_GNU_SOURCE $(OPTIMIZE) $(WARN) -fno-math-errno -ffp-contract=off -pthread -I. \
	$(INSTRUMENT) $(EXTRA_CFLAGS)
LDLIBS := -ljansson -lpcre2-8 -lutf8proc -lcrypto -lhwloc -lm -pthread
VERSION := $(shell sed -n 's/.*NGX_HTTP_MOE_VERSION *"\(.*\)"/\1/p' ngx_http_moe_module.h)

PREFIX ?= /usr/local
MODULES_DIR ?= $(PREFIX)/lib/nginx/modules
NGINX ?= /usr/sbin/nginx

.DELETE_ON_ERROR:
.SECONDARY:
.SUFFIXES:
.PHONY: all engine module test unit golden server clients sanitize tsan fuzz fuzz-targets nightly \
	load bench install clean always

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

# The module is built by nginx's own configure and make, out of both trees.  TSan must be in the
# program itself, which is the distribution's nginx.
MODULE_INSTRUMENT := $(call instrument,$(filter-out thread,$(SANITIZE)))
NGINX_SOURCE ?= /usr/share/nginx/src
NGINX_OBJECTS := $(abspath $(BUILD))/nginx
MODULE_SOURCES := config $(wildcard *.c *.h http/*.c http/*.h engine/channel/*.c engine/channel/*.h) \
	$(addprefix engine/core/,buffer.c buffer.h clock.h delta.c delta.h error.c error.h given.h \
	model_path.c model_path.h string.h)

# The default of moe_engine_path is compiled in: another PREFIX configures anew.
$(NGINX_OBJECTS).prefix: always
	@mkdir -p $(@D)
	@echo '$(PREFIX)' | cmp -s - $@ || echo '$(PREFIX)' >$@

$(NGINX_OBJECTS)/Makefile: config $(NGINX_OBJECTS).prefix
	cd $(NGINX_SOURCE) && . ./conf_flags && MOE_ENGINE_PATH=$(PREFIX)/sbin/moe-engine \
		bash ./configure "$${NGX_CONF_FLAGS[@]}" --builddir=$(NGINX_OBJECTS) \
		--with-cc-opt="$(OPTIMIZE) $(MODULE_INSTRUMENT) $(EXTRA_CFLAGS)" \
		--with-ld-opt="$(MODULE_INSTRUMENT) $(LDFLAGS)" \
		--add-dynamic-module=$(CURDIR) >$(NGINX_OBJECTS).log

$(BUILD)/ngx_http_moe_module.so: $(NGINX_OBJECTS)/Makefile $(MODULE_SOURCES)
	$(MAKE) -C $(NGINX_SOURCE) -f $(NGINX_OBJECTS)/Makefile modules
	cp --remove-destination $(NGINX_OBJECTS)/ngx_http_moe_module.so $@

$(BUILD)/unit/%: $(BUILD)/t/unit/%.o $(LIBRARY)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ $(LDLIBS) -lcmocka -o $@

$(BUILD)/golden/%: $(BUILD)/t/golden/%.o $(LIBRARY)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ $(LDLIBS) -lcmocka -o $@

unit: $(UNIT_TESTS)
	@for t in $(UNIT_TESTS); do echo "== $$t"; timeout 300 $$t || exit 1; done

golden: $(GOLDEN_TESTS)
	@for t in $(GOLDEN_TESTS); do echo "== $$t"; timeout 300 $$t || exit 1; done

# Server tests: real nginx, real engine, the demo model, and tiny models of all families.
server: all load $(BUILD)/golden/reference_test
	prove -j2 t/

clients: all
	BUILD=$(BUILD) t/clients/run

test: unit golden server

# nginx itself is not instrumented: the tests preload the run-time library for the module.
SANITIZE_BUILD := $(BUILD)/sanitize
SANITIZE_TESTS ?= abort chat choices completions errors hostile keys logprobs ranks reload stop stream status_metrics \
	tools tools_request
sanitize:
	$(MAKE) SANITIZE=address,undefined BUILD=$(SANITIZE_BUILD) all unit
	BUILD=$(SANITIZE_BUILD) TEST_SLOW=4 TEST_PRELOAD=$$($(CC) -print-file-name=libasan.so) \
		prove -j2 $(SANITIZE_TESTS:%=t/%.t)

# TSan wants its shadow where address randomisation may have put something.
TSAN_BUILD := $(BUILD)/tsan
TSAN_UNIT := balance comm engine exchange groups ranks server scheduler tensor threads
TSAN_TESTS ?= completions ranks stream
tsan:
	$(MAKE) SANITIZE=thread BUILD=$(TSAN_BUILD) all $(TSAN_UNIT:%=$(TSAN_BUILD)/unit/%_test)
	@for t in $(TSAN_UNIT:%=$(TSAN_BUILD)/unit/%_test); do echo "== $$t"; timeout 600 setarch -R $$t || exit 1; done
	BUILD=$(TSAN_BUILD) TEST_SLOW=4 TEST_THREADS=3 setarch -R prove -j2 $(TSAN_TESTS:%=t/%.t)

# t/fuzz/NAME_fuzz.c is a target of libFuzzer, t/fuzz/corpus/NAME its seeds, t/fuzz/NAME.dict, where
# there is one, its words; new inputs of interest are kept in the build directory.  A seed of 0 is
# drawn anew every time.
FUZZ_BUILD := $(BUILD)/fuzz
FUZZ_CC ?= clang
FUZZ_SECONDS ?= 10
FUZZ_TARGETS ?= $(patsubst t/fuzz/%_fuzz.c,%,$(sort $(wildcard t/fuzz/*_fuzz.c)))
FUZZ_SEED ?= 0
FUZZ_OPTIONS := -timeout=10 -rss_limit_mb=2048 -seed=$(FUZZ_SEED)
fuzz: $(NGINX_OBJECTS)/Makefile
	$(MAKE) CC=$(FUZZ_CC) SANITIZE=fuzzer-no-link,address,undefined,float-cast-overflow \
		BUILD=$(FUZZ_BUILD) NGINX_OBJECTS=$(NGINX_OBJECTS) fuzz-targets
	@for t in $(FUZZ_TARGETS); do \
		echo "== $$t"; mkdir -p $(FUZZ_BUILD)/corpus/$$t; \
		$(FUZZ_BUILD)/target/$$t -max_total_time=$(FUZZ_SECONDS) $(FUZZ_OPTIONS) \
			$$(ls t/fuzz/$$t.dict 2>/dev/null | sed s/^/-dict=/) \
			-artifact_prefix=$(FUZZ_BUILD)/$$t- $(FUZZ_BUILD)/corpus/$$t t/fuzz/corpus/$$t \
			>$(FUZZ_BUILD)/$$t.log 2>&1 || { tail -n 40 $(FUZZ_BUILD)/$$t.log; exit 1; }; \
	done

fuzz-targets: $(FUZZ_TARGETS:%=$(BUILD)/target/%)

FUZZ_LIBRARY := $(filter $(addprefix $(BUILD)/engine/,channel/% core/% model/% text/%),$(ENGINE_OBJECTS))
$(BUILD)/target/%: $(BUILD)/t/fuzz/%_fuzz.o $(FUZZ_LIBRARY)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -fsanitize=fuzzer $^ $(LDLIBS) -o $@

# The module's parser of bodies needs nothing of nginx but its headers.
FUZZ_PARSER := $(addprefix $(BUILD)/http/,openai_fields.o openai_messages.o openai_parse.o \
	openai_tools.o)
$(BUILD)/target/openai: $(FUZZ_PARSER)
$(BUILD)/t/fuzz/openai_fuzz.o $(FUZZ_PARSER): CFLAGS += \
	$(addprefix -isystem $(NGINX_SOURCE)/src/,core event event/modules os/unix http http/modules http/v2) \
	-isystem $(NGINX_OBJECTS)

nightly: all
	@for t in $(sort $(wildcard t/nightly/*.pl)); do echo "== $$t"; perl -It/lib $$t || exit 1; done

# The load generator of t/bench, which works against any server.
LOAD_OBJECTS := $(patsubst %.c,$(BUILD)/%.o,$(sort $(wildcard t/bench/load/*.c)))
load: $(BUILD)/load

$(BUILD)/load: $(LOAD_OBJECTS) $(LIBRARY)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ $(LDLIBS) -lssl -o $@

# What t/bench/NAME.pl measures by itself is in NAME.c.
BENCH_PROGRAMS := $(patsubst t/bench/%.c,$(BUILD)/bench/%,$(sort $(wildcard t/bench/*.c)))
$(BUILD)/bench/%: $(BUILD)/t/bench/%.o $(LIBRARY)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ $(LDLIBS) -o $@

bench: all load $(BENCH_PROGRAMS)
	@for b in $(sort $(wildcard t/bench/*.pl)); do echo "== $$b"; perl -It/lib $$b || exit 1; done

install: all
	install -D -m 755 $(BUILD)/moe-engine $(DESTDIR)$(PREFIX)/sbin/moe-engine
	install -D -m 644 $(BUILD)/ngx_http_moe_module.so $(DESTDIR)$(MODULES_DIR)/ngx_http_moe_module.so
	install -d $(DESTDIR)$(PREFIX)/share/ngx_http_moe/models/nginx-directives-moe
	install -m 644 conf/demo.conf conf/nginx.conf.sample conf/cluster.conf \
		conf/cluster-node.conf conf/prometheus.yml conf/grafana-dashboard.json $(DESTDIR)$(PREFIX)/share/ngx_http_moe
	install -m 644 conf/models/nginx-directives-moe/* \
		$(DESTDIR)$(PREFIX)/share/ngx_http_moe/models/nginx-directives-moe

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
