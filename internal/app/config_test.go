package app_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/app"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	const secret = "kept-to-ourselves"
	for _, c := range []struct {
		name   string
		change func(*app.Config)
		env    string // of the setting that is wrong; empty: none is
		shows  string
	}{
		{"as it is", func(*app.Config) {}, "", ""},
		{"private database", func(c *app.Config) { c.DatabaseDSN = "" }, "", ""},
		{"open", func(c *app.Config) { c.AdminAuth, c.AdminToken = app.AdminOpen, "" }, "", ""},
		{"named tokens only", func(c *app.Config) { c.AdminToken, c.AdminTokens = "", map[string]string{"joe": "long-enough"} }, "", ""},
		{"hmac", func(c *app.Config) {
			c.GatewayAuthMode, c.GatewayAuthSecret = app.GatewayHMAC, "MDEyMzQ1Njc4OTAxMjM0NQ=="
		}, "", ""},
		{"DSN", func(c *app.Config) { c.DatabaseDSN = "root:" + secret + "@tcp(localhost" }, "REDRIVE_DATABASE_DSN", "user:password@tcp(host:port)/database"},
		{"DSN without a database", func(c *app.Config) { c.DatabaseDSN = "root:" + secret + "@tcp(localhost)/" }, "REDRIVE_DATABASE_DSN", "no database"},
		{"connections", func(c *app.Config) { c.DatabaseMaxConnections = 1 }, "REDRIVE_DATABASE_MAX_CONNECTIONS", `"1"`},
		{"seal key no base64", func(c *app.Config) { c.SealKey = secret + "!" }, "REDRIVE_SEAL_KEY", "32 bytes"},
		{"seal keys", func(c *app.Config) {
			c.SealKey = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=, AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
		}, "", ""},
		{"second seal key", func(c *app.Config) {
			c.SealKey = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=,"
		}, "REDRIVE_SEAL_KEY", "key 2 has 0 bytes"},
		{"seal key short", func(c *app.Config) { c.SealKey = "c2hvcnQ=" }, "REDRIVE_SEAL_KEY", "5 bytes"},
		{"no data folder", func(c *app.Config) { c.DatabaseDSN, c.DataDir = "", "" }, "REDRIVE_DATA_DIR", `""`},
		{"listen", func(c *app.Config) { c.HTTPListen = "8080" }, "REDRIVE_HTTP_LISTEN", `"8080"`},
		{"listen on a high port", func(c *app.Config) { c.HTTPListen = ":70000" }, "REDRIVE_HTTP_LISTEN", `":70000"`},
		{"admin auth", func(c *app.Config) { c.AdminAuth = "both" }, "REDRIVE_ADMIN_AUTH", "token or open"},
		{"no admin token", func(c *app.Config) { c.AdminToken = "" }, "REDRIVE_ADMIN_TOKEN", "REDRIVE_ADMIN_AUTH"},
		{"short admin token", func(c *app.Config) { c.AdminToken = "x" }, "REDRIVE_ADMIN_TOKEN", "at least 8"},
		{"admin token with a space", func(c *app.Config) { c.AdminToken = secret + " " }, "REDRIVE_ADMIN_TOKEN", "without spaces"},
		{"short named token", func(c *app.Config) { c.AdminTokens = map[string]string{"joe": "x"} }, "REDRIVE_ADMIN_TOKENS", "at least 8"},
		{"managed app", func(c *app.Config) { c.EngineContext = "managed-app" }, "", ""},
		{"engine context", func(c *app.Config) { c.EngineContext = "customer" }, "REDRIVE_ENGINE_CONTEXT", "publisher or managed-app"},
		{"engines", func(c *app.Config) {
			c.Engines = `{"billing":{"queue":"billing-queue","operations":["charge"]}}`
			c.EngineTablesConfig = `{"storageAccountName":"redrive","dlqTableName":"dlq","historyTableName":"history","retentionDays":7}`
		}, "", ""},
		{"engine without operations", func(c *app.Config) { c.Engines = `{"billing":{"queue":"q"}}` }, "REDRIVE_ENGINES", "operations must name at least one"},
		{"engine's endpoint with a user", func(c *app.Config) {
			c.Engines = `{"billing":{"queue":"q","operations":["charge"],"endpoint":"https://joe:` + secret + `@billing.example/run?code=` + secret + `"}}`
		}, "REDRIVE_ENGINES", "tokenFile"},
		{"engines no JSON, with secrets", func(c *app.Config) { c.Engines = `{"billing":{"endpoint":"http:\/\/` + secret + `@x?` + secret }, "REDRIVE_ENGINES", "unexpected EOF"},
		{"two wrong engines", func(c *app.Config) { c.Engines = `{"billing":{"queue":"q"},"other":{"queue":"r"}}` }, "REDRIVE_ENGINES", "at least one; "},
		{"engines no JSON", func(c *app.Config) { c.Engines = `billing` }, "REDRIVE_ENGINES", "a JSON object"},
		{"engines unknown field", func(c *app.Config) { c.Engines = `{"billing":{"que":"q"}}` }, "REDRIVE_ENGINES", `unknown field`},
		{"two JSON values", func(c *app.Config) { c.EngineTablesConfig = `{} {}` }, "REDRIVE_ENGINE_TABLES_CONFIG", "more than one"},
		{"table name", func(c *app.Config) { c.EngineTablesConfig = `{"dlqTableName":"a b"}` }, "REDRIVE_ENGINE_TABLES_CONFIG", "engineTablesConfig.dlqTableName"},
		{"retention", func(c *app.Config) { c.EngineTablesConfig = `{"retentionDays":-1}` }, "REDRIVE_ENGINE_TABLES_CONFIG", "retentionDays"},
		{"another schema", func(c *app.Config) { c.EngineTablesConfig = `{"storageAccountName":"elsewhere"}` }, "REDRIVE_ENGINE_TABLES_CONFIG", "one transaction"},
		{"engine lease", func(c *app.Config) { c.EngineLease = time.Millisecond }, "REDRIVE_ENGINE_LEASE", `"1ms"`},
		{"retries", func(c *app.Config) { c.BrokerMaxRetry = -1 }, "REDRIVE_BROKER_MAX_RETRY", `"-1"`},
		{"no backoff", func(c *app.Config) { c.BrokerRetryBackoff = nil }, "REDRIVE_BROKER_RETRY_BACKOFF", "5s,30s"},
		{"backoff", func(c *app.Config) { c.BrokerRetryBackoff = []time.Duration{time.Second, -1} }, "REDRIVE_BROKER_RETRY_BACKOFF", "1s,-1ns"},
		{"timeout", func(c *app.Config) { c.BrokerDeliveryTimeout = 0 }, "REDRIVE_BROKER_DELIVERY_TIMEOUT", `"0s"`},
		{"delay", func(c *app.Config) { c.BrokerRationalDelay = time.Hour + 1 }, "REDRIVE_BROKER_RATIONAL_DELAY", "1h"},
		{"concurrency", func(c *app.Config) { c.BrokerConcurrency = 0 }, "REDRIVE_BROKER_CONCURRENCY", `"0"`},
		{"token header", func(c *app.Config) { c.BrokerConsumerTokenHeader = "X Token" }, "REDRIVE_BROKER_CONSUMER_TOKEN_HEADER", `"X Token"`},
		{"a signature's header", func(c *app.Config) { c.BrokerConsumerTokenHeader = "webhook-signature" }, "REDRIVE_BROKER_CONSUMER_TOKEN_HEADER", `"webhook-signature"`},
		{"a delivery's header", func(c *app.Config) { c.BrokerConsumerTokenHeader = "X-Broker-Message-ID" }, "REDRIVE_BROKER_CONSUMER_TOKEN_HEADER", "HTTP header"},
		{"timer of an engine that is elsewhere", func(c *app.Config) { c.Engines = `{"tls":{"every":"1h"}}` }, "REDRIVE_ENGINES", "needs an endpoint"},
		{"timer of an engine that is built in", func(c *app.Config) { c.Engines = `{"hmac":{"every":"24h"}}` }, "", ""},
		{"short timeout", func(c *app.Config) { c.Engines = `{"tls":{"endpoint":"http://a/","timeout":"1ms"}}` }, "REDRIVE_ENGINES", "1s or more"},
		{"much at a time", func(c *app.Config) { c.Engines = `{"tls":{"endpoint":"http://a/","concurrency":2000000000}}` }, "REDRIVE_ENGINES", "at most 10000"},
		{"two engines of a queue", func(c *app.Config) {
			c.Engines = `{"tls":{"queue":"hmac-rotation-queue"}}`
		}, "REDRIVE_ENGINES", `that of the engine`},
		{"reserved header", func(c *app.Config) { c.BrokerConsumerTokenHeader = "host" }, "REDRIVE_BROKER_CONSUMER_TOKEN_HEADER", `"host"`},
		{"body", func(c *app.Config) { c.BrokerMaxBodyBytes = 1 << 40 }, "REDRIVE_BROKER_MAX_BODY_BYTES", "67108864"},
		{"schedule", func(c *app.Config) { c.BrokerMinScheduleDelay = -time.Second }, "REDRIVE_BROKER_MIN_SCHEDULE_DELAY", `"-1s"`},
		{"scheduler", func(c *app.Config) { c.SchedulerInterval = 0 }, "REDRIVE_SCHEDULER_INTERVAL", `"0s"`},
		{"summary", func(c *app.Config) { c.DLQSummaryInterval = time.Millisecond }, "REDRIVE_DLQ_SUMMARY_INTERVAL", `"1ms"`},
		{"gateway", func(c *app.Config) { c.GatewayAuthMode = "basic" }, "REDRIVE_GATEWAY_AUTH_MODE", "none or hmac"},
		{"gateway without a secret", func(c *app.Config) { c.GatewayAuthMode = app.GatewayHMAC }, "REDRIVE_GATEWAY_AUTH_SECRET", "REDRIVE_GATEWAY_AUTH_MODE"},
		{"short gateway secret", func(c *app.Config) { c.GatewayAuthSecret = "c2hvcnQ=" }, "REDRIVE_GATEWAY_AUTH_SECRET", "16 bytes"},
		{"exempt paths", func(c *app.Config) { c.GatewayAuthExempt = []string{"metrics"} }, "REDRIVE_GATEWAY_AUTH_EXEMPT", `"metrics"`},
		{"retention", func(c *app.Config) { c.PruneRetentionDays = -1 }, "REDRIVE_PRUNE_RETENTION_DAYS", `"-1"`},
		{"node name", func(c *app.Config) { c.PruneNodeName = "a/b" }, "REDRIVE_PRUNE_NODE_NAME", `"a/b"`},
		{"prune interval", func(c *app.Config) { c.PruneInterval = 0 }, "REDRIVE_PRUNE_INTERVAL", `"0s"`},
		{"log level", func(c *app.Config) { c.LogLevel = "loud" }, "REDRIVE_LOG_LEVEL", "debug, info, warn or error"},
		{"log format", func(c *app.Config) { c.LogFormat = "xml" }, "REDRIVE_LOG_FORMAT", "json or text"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig("root:" + secret + "@tcp(localhost)/redrive")
			cfg.AdminToken = secret
			c.change(&cfg)
			_, err := app.New(app.Options{Config: cfg, Log: slog.New(slog.DiscardHandler)})
			if c.env == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var wrong *app.SettingError
			if !errors.As(err, &wrong) {
				t.Fatalf("no setting is wrong: %v", err)
			}
			text := err.Error()
			if wrong.Env != c.env || !strings.HasPrefix(text, c.env+": ") || !strings.Contains(text, c.shows) || !strings.Contains(text, ": must be ") {
				t.Errorf("it says %q", text)
			}
			if strings.Contains(text, secret) || strings.Contains(text, "\n") {
				t.Errorf("a secret or more than a line in %q", text)
			}
		})
	}
}

func TestSettingsShowNoSecrets(t *testing.T) {
	t.Parallel()
	cfg := testConfig("root:hidden1@tcp(localhost)/redrive")
	cfg.AdminToken, cfg.SealKey, cfg.GatewayAuthSecret = "hidden22", "hidden3", "hidden4"
	cfg.AdminTokens = map[string]string{"joe": "hidden55"}
	cfg.AlertTokens = map[string]string{"alertmanager": "hidden66"}
	cfg.Engines = `{"tls":{"endpoint":"https://platform.example/tls?code=hidden7","tokenFile":"/run/secrets/tls"}}`
	for _, s := range cfg.Settings() {
		if strings.Contains(s.Value, "hidden") || s.Secret != strings.HasPrefix(s.Value, "(") {
			t.Errorf("%+v", s)
		}
		if s.Env == "REDRIVE_ENGINES" && s.Value != `{"tls":{"endpoint":"https://platform.example/tls?...","tokenFile":"/run/secrets/tls"}}` {
			t.Errorf("the engines are %s", s.Value)
		}
	}
}

func TestEnvName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"DatabaseDSN": "REDRIVE_DATABASE_DSN", "database-dsn": "REDRIVE_DATABASE_DSN", "HTTPListen": "REDRIVE_HTTP_LISTEN",
		"DLQSummaryInterval": "REDRIVE_DLQ_SUMMARY_INTERVAL", "config": "REDRIVE_CONFIG", "DataDir": "REDRIVE_DATA_DIR",
	} {
		if got := app.EnvName(name); got != want {
			t.Errorf("%s is %s, not %s", name, got, want)
		}
	}
}

const seedText = `
channels:
  - {id: orders, name: Orders, token: orders-token}
producers:
  - {id: shop, token: shop-token}
consumers:
  - {id: mail, channel: orders, name: Mail, token: mail-token, callbackUrl: "https://user:pass@mail.example/in?key=hidden"}
  - {id: puller, channel: orders, token: puller-token, type: pull, callbackUrl: "https://mail.example/none"}
`

// A seed file creates what is missing, changes nothing that is there, and shows no token.
func TestSeedFile(t *testing.T) {
	t.Parallel()
	cfg := testConfig(storagetest.DSN(t))
	cfg.SeedFile = filepath.Join(t.TempDir(), "seed.yaml")
	if err := os.WriteFile(cfg.SeedFile, []byte(seedText), 0o600); err != nil {
		t.Fatal(err)
	}
	first := start(t, cfg)
	first.broadcast("m1", orderBody(1)).want(201)
	if jobs := queued(first.api); len(jobs) != 1 {
		t.Errorf("%d jobs for the seeded pull consumer", len(jobs))
	}
	status := first.do("GET", "/_status", "").want(200).body
	if !strings.Contains(status, `"AppStatus":3`) || !strings.Contains(status, `"id":"mail"`) || !strings.Contains(status, "mail.example/in") {
		t.Errorf("/_status is %s", status)
	}
	for _, secret := range []string{"-token", "hidden", "pass"} {
		if strings.Contains(status, secret) {
			t.Errorf("/_status shows a secret: %s", status)
		}
	}
	version := first.do("GET", channel, "").want(200).header.Get("Last-Modified")
	first.stop(t)

	second := start(t, cfg)
	if now := second.do("GET", channel, "").want(200).header.Get("Last-Modified"); now != version {
		t.Errorf("the second start changed the channel: %s, before %s", now, version)
	}
}

func TestSeedFileRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, says string }{
		"typo":             {"chanels: []", "chanels"},
		"no-id":            {"channels: [{name: x}]", "channel 1: it has no id"},
		"control":          {`producers: [{id: "a\u0007"}]`, "producer 1"},
		"no-channel":       {"consumers: [{id: k, callbackUrl: 'http://k.example/'}]", "consumer 1: it has no channel"},
		"type":             {"consumers: [{id: k, channel: c, type: poll, callbackUrl: 'http://k.example/'}]", "push or pull"},
		"callback":         {"consumers: [{id: k, channel: c, callbackUrl: '/k'}]", "callbackUrl"},
		"callback-long":    {"consumers: [{id: k, channel: c, callbackUrl: 'http://k.example/" + strings.Repeat("x", 2048) + "'}]", "2048 bytes"},
		"callback-port":    {"consumers: [{id: k, channel: c, callbackUrl: 'http://k.example:0/'}]", "port"},
		"callback-private": {"consumers: [{id: k, channel: c, callbackUrl: 'http://127.0.0.1/'}]", "loopback"},
		"space":            {"channels: [{id: ' c'}]", "channel 1: id begins or ends with white space"},
		"space-in-name":    {"producers: [{id: p, name: 'P '}]", "producer 1: name begins or ends with white space"},
		"long-token":       {"producers: [{id: p, token: " + strings.Repeat("x", 256) + "}]", "token is longer than 255 bytes"},
		"not-yaml":         {"a: [", "yaml"},
		"missing-file":     {"", "no such file"},
	} {
		cfg := testConfig("root@tcp(localhost)/redrive")
		cfg.SeedFile = filepath.Join(dir, name)
		if c.text != "" {
			if err := os.WriteFile(cfg.SeedFile, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cfg.BrokerAllowPrivateDestinations = false
		_, err := app.New(app.Options{Config: cfg})
		var wrong *app.SettingError
		if !errors.As(err, &wrong) || wrong.Env != "REDRIVE_SEED_FILE" || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
