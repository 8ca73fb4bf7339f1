package main

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/redrive-mq/redrive/internal/app"
	"github.com/redrive-mq/redrive/migration"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

// asMain in the environment makes the test binary act as redrive itself.
const asMain = "REDRIVE_TEST_ACT_AS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
	}
	storagetest.Main(m)
}

// result is how a command ended.
type result struct {
	code     int
	out, err string
}

// redrive runs a command in this process, with this environment and no other.
func redrive(t *testing.T, env map[string]string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	var environ []string
	for name, value := range env {
		environ = append(environ, name+"="+value)
	}
	code := run(t.Context(), args, process{out: &out, err: &errOut, environ: environ, lookupEnv: func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	}})
	return result{code, out.String(), errOut.String()}
}

// Scripts outside rely on these names.
func TestServeHelpListsEverySetting(t *testing.T) {
	t.Parallel()
	help := redrive(t, nil, "serve", "--help")
	if help.code != exitOK {
		t.Fatalf("exit status %d", help.code)
	}
	for _, name := range []string{
		"REDRIVE_DATABASE_DSN", "REDRIVE_DATA_DIR", "REDRIVE_HTTP_LISTEN", "REDRIVE_ADMIN_AUTH", "REDRIVE_ADMIN_TOKEN",
		"REDRIVE_BROKER_MAX_RETRY", "REDRIVE_BROKER_RETRY_BACKOFF", "REDRIVE_BROKER_DELIVERY_TIMEOUT", "REDRIVE_BROKER_RATIONAL_DELAY",
		"REDRIVE_BROKER_MIN_SCHEDULE_DELAY", "REDRIVE_SCHEDULER_INTERVAL", "REDRIVE_BROKER_ALLOW_PRIVATE_DESTINATIONS",
		"REDRIVE_DLQ_SUMMARY_INTERVAL", "REDRIVE_GATEWAY_AUTH_MODE", "REDRIVE_GATEWAY_AUTH_SECRET",
		"REDRIVE_PRUNE_RETENTION_DAYS", "REDRIVE_PRUNE_EXPORT_PATH", "REDRIVE_PRUNE_NODE_NAME", "REDRIVE_PRUNE_INTERVAL",
		"REDRIVE_SEED_FILE", "REDRIVE_LOG_LEVEL", "REDRIVE_LOG_FORMAT", "REDRIVE_AUTO_MIGRATE",
		"REDRIVE_SEAL_KEY", "REDRIVE_BROKER_MAX_BODY_BYTES", "REDRIVE_BROKER_CONCURRENCY", "REDRIVE_BROKER_CONSUMER_TOKEN_HEADER",
		"REDRIVE_DATABASE_MAX_CONNECTIONS", "REDRIVE_CONFIG",
	} {
		if !strings.Contains(help.out, "["+name+"]") {
			t.Errorf("serve --help does not list %s", name)
		}
	}
}

func TestWrongSettings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name string
		env  map[string]string
		args []string
		says []string
	}{
		{"number", map[string]string{"REDRIVE_BROKER_MAX_RETRY": "many"}, nil, []string{"REDRIVE_BROKER_MAX_RETRY", `"many"`, "a whole number from 0 to 1000"}},
		{"range", map[string]string{"REDRIVE_BROKER_MAX_RETRY": "-1"}, nil, []string{"REDRIVE_BROKER_MAX_RETRY", `"-1"`}},
		{"duration", map[string]string{"REDRIVE_DLQ_SUMMARY_INTERVAL": "10"}, nil, []string{"REDRIVE_DLQ_SUMMARY_INTERVAL", `"10"`, "a duration"}},
		{"list", map[string]string{"REDRIVE_BROKER_RETRY_BACKOFF": "5s,soon"}, nil, []string{"REDRIVE_BROKER_RETRY_BACKOFF", `"soon"`}},
		{"switch", map[string]string{"REDRIVE_AUTO_MIGRATE": "maybe"}, nil, []string{"REDRIVE_AUTO_MIGRATE", `"maybe"`, "true or false"}},
		{"flag", nil, []string{"--broker-max-retry=x"}, []string{"REDRIVE_BROKER_MAX_RETRY", `"x"`}},
		{"password", map[string]string{"REDRIVE_DATABASE_DSN": "u:tell-nobody@tcp(h"}, nil, []string{"REDRIVE_DATABASE_DSN"}},
		{"seal key", map[string]string{"REDRIVE_SEAL_KEY": "tell-nobody"}, nil, []string{"REDRIVE_SEAL_KEY", "32 bytes in base64"}},
		{"admin tokens", map[string]string{"REDRIVE_ADMIN_TOKENS": "tell-nobody"}, nil, []string{"REDRIVE_ADMIN_TOKENS", "names with tokens"}},
		{"an admin token too many", map[string]string{"REDRIVE_ADMIN_TOKENS": "joe=long-enough;tell-nobody"}, nil, []string{"REDRIVE_ADMIN_TOKENS"}},
		{"admin tokens of one name", map[string]string{"REDRIVE_ADMIN_TOKENS": "joe=long-enough;joe=tell-nobody"}, nil, []string{"REDRIVE_ADMIN_TOKENS"}},
		{"admin tokens as a flag", nil, []string{"--admin-tokens=tell-nobody"}, []string{"REDRIVE_ADMIN_TOKENS"}},
		{"admin tokens as a list", nil, []string{"--config", file("d.yaml", "admin-tokens: {joe: [tell-nobody]}")}, []string{"REDRIVE_CONFIG", "admin-tokens"}},
		{"no token", map[string]string{"REDRIVE_ADMIN_TOKEN": ""}, nil, []string{"REDRIVE_ADMIN_TOKEN", "REDRIVE_ADMIN_AUTH"}},
		{"file missing", map[string]string{"REDRIVE_CONFIG": filepath.Join(dir, "none.yaml")}, nil, []string{"REDRIVE_CONFIG", "none.yaml", "no such file"}},
		{"file with a typo", nil, []string{"--config", file("a.yaml", "broker: {max-retries: 3}")}, []string{"REDRIVE_CONFIG", "broker-max-retries"}},
		{"file no YAML", nil, []string{"--config", file("b.yaml", "a: [")}, []string{"REDRIVE_CONFIG", "no YAML"}},
		{"file value", nil, []string{"--config", file("c.yaml", "broker: {max-retry: 1.5}")}, []string{"REDRIVE_BROKER_MAX_RETRY", `"1.5"`}},
		{"unknown flag", nil, []string{"--broker-max-retires=3"}, []string{"--broker-max-retires"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			env := map[string]string{"REDRIVE_ADMIN_TOKEN": "tell-nobody", "REDRIVE_DATABASE_DSN": "u:tell-nobody@tcp(h)/d"}
			maps.Copy(env, c.env)
			got := redrive(t, env, append([]string{"serve"}, c.args...)...)
			if got.code != exitUsage || strings.Count(got.err, "\n") != 1 || strings.Contains(got.err, "tell-nobody") {
				t.Errorf("exit status %d: %q", got.code, got.err)
			}
			for _, want := range c.says {
				if !strings.Contains(got.err, want) {
					t.Errorf("it does not say %s: %q", want, got.err)
				}
			}
		})
	}
}

// A flag wins over the environment, that over the file, that over the default.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "redrive.yaml")
	if err := os.WriteFile(path, []byte(`
database: {dsn: "u:p@tcp(h)/d"}
admin-token: from-the-file
admin-tokens: {joe: his-own-token}
broker:
  max-retry: 7
  delivery-timeout: 7s
  concurrency: 7
  retry-backoff: [1s, 7s]
  allow-private-destinations: true
engine-context: managed-app
engines:
  billing: {queue: billing-queue, operations: [charge, refund]}
engine-tables-config: {dlqTableName: deadLetters, retentionDays: 7}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	got := redrive(t, map[string]string{
		"REDRIVE_CONFIG": path, "REDRIVE_BROKER_CONCURRENCY": "8", "REDRIVE_BROKER_DELIVERY_TIMEOUT": "8s", "REDRIVE_LOG_LEVEL": "",
	}, "check", "config", "--broker-delivery-timeout", "9s")
	if got.code != exitOK {
		t.Fatal(got.err)
	}
	values := map[string]string{}
	for line := range strings.Lines(got.out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		values[name] = strings.TrimSpace(value)
	}
	for name, want := range map[string]string{
		"REDRIVE_BROKER_DELIVERY_TIMEOUT": "9s", "REDRIVE_BROKER_CONCURRENCY": "8", "REDRIVE_BROKER_MAX_RETRY": "7",
		"REDRIVE_BROKER_RETRY_BACKOFF": "1s,7s", "REDRIVE_BROKER_ALLOW_PRIVATE_DESTINATIONS": "true", "REDRIVE_LOG_LEVEL": "info",
		"REDRIVE_DATABASE_DSN": "(set)", "REDRIVE_ADMIN_TOKENS": "(set)", "REDRIVE_BROKER_RATIONAL_DELAY": "2s",
		"REDRIVE_ENGINE_CONTEXT": "managed-app", "REDRIVE_ENGINES": `{"billing":{"operations":["charge","refund"],"queue":"billing-queue"}}`,
		"REDRIVE_ENGINE_TABLES_CONFIG": `{"dlqTableName":"deadLetters","retentionDays":7}`,
	} {
		if values[name] != want {
			t.Errorf("%s is %q, not %q", name, values[name], want)
		}
	}
}

// What serve would refuse or warn of before it opens anything, a check of the settings finds, too.
func TestCheckConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	check := func(seed string, env map[string]string) result {
		t.Helper()
		path := filepath.Join(dir, "seed.yaml")
		if err := os.WriteFile(path, []byte(seed), 0o600); err != nil {
			t.Fatal(err)
		}
		env["REDRIVE_ADMIN_TOKEN"], env["REDRIVE_SEED_FILE"] = "long-enough", path
		return redrive(t, env, "check", "config")
	}
	if got := check("consumers: [{id: erp}]", map[string]string{}); got.code != exitUsage || !strings.Contains(got.err, "REDRIVE_SEED_FILE") || got.out != "" {
		t.Errorf("a wrong seed file: exit status %d, %q", got.code, got.err)
	}
	got := check("channels: [{id: orders}]", map[string]string{"REDRIVE_BROKER_MAX_RETRIES": "3"})
	if got.code != exitOK || !strings.Contains(got.err, "REDRIVE_BROKER_MAX_RETRIES is no setting") || !strings.Contains(got.out, "REDRIVE_SEED_FILE") {
		t.Errorf("a misspelt variable: exit status %d, %q", got.code, got.err)
	}
}

// Tokens may hold any character that a header may: from the file all of them arrive, elsewhere all but the semicolon.
func TestAdminTokens(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "redrive.yaml")
	if err := os.WriteFile(path, []byte(`admin: {tokens: {joe: "semi;co=lon,comma", ann: "an-other;one"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		want map[string]string
	}{
		"file":        {map[string]string{"REDRIVE_CONFIG": path}, nil, map[string]string{"joe": "semi;co=lon,comma", "ann": "an-other;one"}},
		"environment": {map[string]string{"REDRIVE_ADMIN_TOKENS": "joe=co=lon,comma; ann=an-other-one"}, nil, map[string]string{"joe": "co=lon,comma", "ann": "an-other-one"}},
		"flag":        {nil, []string{"--admin-tokens", "joe=long-enough,"}, map[string]string{"joe": "long-enough,"}},
	} {
		var got struct {
			Serve serveCmd `cmd:""`
		}
		parser, err := kong.New(&got, defaults(), settingMappers())
		if err != nil {
			t.Fatal(err)
		}
		resolver := &settingResolver{model: parser.Model, lookupEnv: func(name string) (string, bool) { v, ok := c.env[name]; return v, ok }}
		if err := kong.Resolvers(resolver).Apply(parser); err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(append([]string{"serve"}, c.args...)); err != nil || !maps.Equal(got.Serve.AdminTokens, c.want) {
			t.Errorf("%s: %v, %v", name, got.Serve.AdminTokens, err)
		}
	}
}

func TestMigrateAndDLQCommands(t *testing.T) {
	t.Parallel()
	env := map[string]string{"REDRIVE_DATABASE_DSN": storagetest.DSN(t, storagetest.Empty())}
	expect := func(code int, says string, args ...string) {
		t.Helper()
		got := redrive(t, env, args...)
		if got.code != code || !strings.Contains(got.out+got.err, says) {
			t.Errorf("%s: exit status %d, %q%q", strings.Join(args, " "), got.code, got.out, got.err)
		}
	}
	expect(exitFailed, "redrive migrate up", "migrate", "status")
	expect(exitOK, "from version 0", "migrate", "up")
	expect(exitOK, "already", "migrate", "up")
	expect(exitOK, "this program needs", "migrate", "status")

	seed := seeded(t, env["REDRIVE_DATABASE_DSN"])
	expect(exitOK, `"deadCount": 3`, "dlq", "status", "--json")
	expect(exitFailed, "3 jobs of erp are dead", "dlq", "purge", "--channel=orders", "--consumer=erp")
	expect(exitOK, "3 dead jobs requeued", "dlq", "requeue", "--channel=orders", "--consumer=erp")
	expect(exitOK, "erp", "dlq", "status")
	seed.kill(t, 2)
	expect(exitOK, "2 dead jobs deleted", "dlq", "purge", "--channel=orders", "--consumer=erp", "--yes")
	expect(exitFailed, `no channel "x"`, "dlq", "requeue", "--channel=x", "--consumer=erp")
	expect(exitFailed, `no consumer "x"`, "dlq", "requeue", "--channel=orders", "--consumer=x")
	expect(exitUsage, "--channel", "dlq", "requeue")

	seed.killEngine(t)
	expect(exitOK, "1 dead jobs requeued", "dlq", "requeue", "--channel=hmac-rotation-queue", "--consumer=hmac")
	seed.killEngine(t)
	expect(exitOK, "hmac-rotation-queue", "dlq", "status")
	expect(exitOK, "1 dead jobs deleted", "dlq", "purge", "--channel=hmac-rotation-queue", "--consumer=hmac", "--yes")

	seed.falsify(t)
	expect(exitOK, "off by +5\norders, erp: 0 dead letters were missing, 1 had no dead job\n", "dlq", "repair")
	expect(exitOK, "0 counts repaired", "dlq", "repair")
	expect(exitOK, "0 dead letters and 0 history entries would go", "retention", "--dry-run")
	expect(exitOK, "0 dead letters and 0 history entries removed", "retention")
	latest, err := migration.Latest()
	if err != nil {
		t.Fatal(err)
	}
	expect(exitOK, "version 0", "migrate", "down", strconv.Itoa(int(latest)))
}

func TestVersionAndHelp(t *testing.T) {
	t.Parallel()
	if got := redrive(t, nil, "version"); got.code != exitOK || !strings.HasPrefix(got.out, "redrive ") {
		t.Errorf("version: %+v", got)
	}
	for _, args := range [][]string{nil, {"--help"}} {
		if got := redrive(t, nil, args...); got.code != exitOK || !strings.Contains(got.out, "serve") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := redrive(t, nil, "sevre"); got.code != exitUsage || got.err == "" {
		t.Errorf("a wrong command: %+v", got)
	}
	if got := redrive(t, nil, "check", "ready", "http://127.0.0.1:1"); got.code != exitFailed || !strings.Contains(got.err, "not ready") {
		t.Errorf("check ready: %+v", got)
	}
}

func TestCheckReady(t *testing.T) {
	t.Parallel()
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Errorf("it asks for %s", r.URL.Path)
		}
		w.WriteHeader(status)
		fmt.Fprint(w, `{"detail":"the database does not answer"}`)
	}))
	defer server.Close()
	for _, url := range []string{server.URL, server.URL + "/", server.URL + "/readyz"} {
		if got := redrive(t, nil, "check", "ready", url); got.code != exitOK {
			t.Errorf("%s: %+v", url, got)
		}
	}
	status = http.StatusServiceUnavailable
	got := redrive(t, map[string]string{"REDRIVE_HTTP_LISTEN": server.Listener.Addr().String()}, "check", "ready")
	if got.code != exitFailed || !strings.Contains(got.err, "the database does not answer") {
		t.Errorf("%+v", got)
	}
}

func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	got := unknownVariables(&app.Config{}, []string{"PATH=/bin", "REDRIVE_DATA_DIR=x", "REDRIVE_CONFIG=y", "REDRIVE_BROKER_MAX_RETRIES=3"})
	if len(got) != 1 || got[0] != "REDRIVE_BROKER_MAX_RETRIES" {
		t.Errorf("%v", got)
	}
}

func TestDevStaysOnLoopback(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"0.0.0.0:8080": "", "192.0.2.1:80": "", "example.com:80": "", "8080": "",
		":9000": "127.0.0.1:9000", "localhost:9000": "localhost:9000", "[::1]:9000": "[::1]:9000",
	} {
		c := devCmd{}
		c.HTTPListen = listen
		err := c.adapt(process{lookupEnv: func(string) (string, bool) { return "", false }})
		if (err == nil) != (want != "") || err == nil && c.HTTPListen != want {
			t.Errorf("%s became %s, error %v", listen, c.HTTPListen, err)
		}
	}
	c := devCmd{}
	c.HTTPListen = "127.0.0.1:8080"
	if err := c.adapt(process{lookupEnv: func(name string) (string, bool) { return "9000", name == "PORT" }}); err != nil || c.HTTPListen != "127.0.0.1:9000" {
		t.Errorf("PORT=9000 gives %s, error %v", c.HTTPListen, err)
	}
}
