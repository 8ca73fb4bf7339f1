package app_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/internal/app"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

// Told to stop, an instance refuses broadcasts, says so at /readyz, and lets the attempt under way end.
func TestDrain(t *testing.T) {
	t.Parallel()
	dsn := storagetest.DSN(t)
	i := start(t, testConfig(dsn))
	i.stage()
	slow := newSink(t)
	arrived, release := make(chan struct{}), make(chan struct{})
	slow.decide(func(delivery, *http.Request) int {
		close(arrived)
		<-release
		return http.StatusOK
	})
	i.addConsumer("slow", "push", slow.URL)
	i.do("GET", "/readyz", "").want(200)
	i.broadcast("m1", orderBody(1)).want(201)
	<-arrived

	i.cancel()
	eventually(t, "/readyz says draining", func() bool {
		got := i.do("GET", "/readyz", "")
		return got.status == http.StatusServiceUnavailable && strings.Contains(got.body, "draining")
	})
	refused := i.broadcast("m2", orderBody(2)).want(503)
	if refused.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	i.do("GET", "/livez", "").want(200)
	if conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(i.base, "http://")); err == nil {
		_ = conn.Close()
		t.Error("it takes connections while it drains")
	}
	close(release)
	i.stop(t)
	if i.err != nil {
		t.Errorf("Run: %v", i.err)
	}
	if _, err := i.try("GET", "/livez", ""); err == nil {
		t.Error("the port still answers")
	}
	next := start(t, testConfig(dsn))
	if got := next.statusOf("m1", "slow"); got != "DELIVERED" {
		t.Errorf("the attempt under way ended as %s", got)
	}
	next.do("GET", channel+"/message/m2", "").want(404)
}

// An attempt that does not end is handed back: stopping takes its time and no more, and another instance goes on.
func TestDrainHandsBack(t *testing.T) {
	t.Parallel()
	cfg := testConfig(storagetest.DSN(t))
	cfg.BrokerDeliveryTimeout = time.Minute
	i := start(t, cfg)
	i.stage()
	hanging := newSink(t)
	arrived := make(chan struct{}, 10)
	hanging.decide(func(_ delivery, r *http.Request) int {
		arrived <- struct{}{}
		<-r.Context().Done()
		return http.StatusOK
	})
	i.addConsumer("hanging", "push", hanging.URL)
	i.broadcast("m1", orderBody(1)).want(201)
	<-arrived
	begin := time.Now()
	i.stop(t)
	if took := time.Since(begin); i.err != nil || took > 15*time.Second {
		t.Errorf("it stopped after %s with %v", took, i.err)
	}
	hanging.heal()
	next := start(t, cfg)
	eventually(t, "another instance delivers", func() bool { return next.statusOf("m1", "hanging") == "DELIVERED" })
}

// While the database is away broadcasts get 503 with Retry-After, never a false 201; when it is back, so is everything.
func TestDatabaseOutage(t *testing.T) {
	t.Parallel()
	server := storagetest.Server(t)
	i := start(t, testConfig(storagetest.DSN(t, storagetest.On(server))))
	i.stage()
	good := newSink(t)
	i.addConsumer("good", "push", good.URL)
	i.broadcast("before", orderBody(1)).want(201)
	eventually(t, "delivery", func() bool { return len(good.of("before")) > 0 })

	server.Kill()
	refused := i.broadcast("during", orderBody(2)).want(503)
	if refused.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	i.do("GET", "/livez", "").want(200)
	if got := i.do("GET", "/readyz", "").want(503).body; !strings.Contains(got, "database") {
		t.Errorf("/readyz does not say why: %s", got)
	}
	i.do("GET", "/metrics", "").want(200)

	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is ready again", func() bool { return i.do("GET", "/readyz", "").status == http.StatusOK })
	eventually(t, "broadcasts are accepted again", func() bool { return i.broadcast("during", orderBody(2)).status != http.StatusServiceUnavailable })
	eventually(t, "delivery after the outage", func() bool { return len(good.of("during")) > 0 })
}

// A database that is down at the start is waited for.
func TestDatabaseDownAtStart(t *testing.T) {
	t.Parallel()
	server := storagetest.Server(t)
	dsn := storagetest.DSN(t, storagetest.On(server))
	server.Kill()
	i := launch(t, testConfig(dsn))
	eventually(t, "/readyz names the database", func() bool {
		return strings.Contains(i.do("GET", "/readyz", "").want(503).body, "database")
	})
	i.do("GET", "/livez", "").want(200)
	refused := i.do("GET", "/dlq-status", "", "X-Request-ID", "mine").want(503)
	if refused.header.Get("Retry-After") == "" || refused.header.Get("X-Request-ID") != "mine" || refused.body != "the database cannot be used yet" ||
		!strings.HasPrefix(refused.header.Get("Content-Type"), "text/plain") {
		t.Errorf("it answers %q with %v", refused.body, refused.header)
	}
	problem := i.do("GET", "/dlq-status", "", "Accept", "application/problem+json").want(503)
	if problem.header.Get("Content-Type") != "application/problem+json" || problem.header.Get("X-Request-ID") == "" {
		t.Errorf("asked for a problem it answers %q with %v", problem.body, problem.header)
	}
	if got := i.do("GET", "/_status", "").want(200).body; got != `{"SeedData":null,"AppStatus":2}` {
		t.Errorf("/_status is %s", got)
	}
	i.do("GET", "/openapi.yaml", "").want(200)
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	i.awaitReady(t)
	i.do("GET", "/readyz", "").want(200)
}

// What waiting for the database does not mend ends the start, and the error names the setting.
func TestStartRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("consumers: [{id: k, channel: nowhere, callbackUrl: 'http://k.example/'}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	const away = "user:password@tcp(127.0.0.1:1)/redrive"
	for name, c := range map[string]struct {
		change    func(*app.Config)
		env, says string
	}{
		"archive in a file":  {func(c *app.Config) { c.DatabaseDSN, c.PruneExportPath = away, filepath.Join(file, "archive") }, "REDRIVE_PRUNE_EXPORT_PATH", "not a directory"},
		"archive by FTP":     {func(c *app.Config) { c.DatabaseDSN, c.PruneExportPath = away, "ftp://joe:hidden@host/x?key=hidden" }, "REDRIVE_PRUNE_EXPORT_PATH", "ftp"},
		"seed of no channel": {func(c *app.Config) { c.DatabaseDSN, c.SeedFile = storagetest.DSN(t), file }, "REDRIVE_SEED_FILE", `there is no channel "nowhere"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := testConfig("")
			cfg.PruneRetentionDays, cfg.PruneExportPath = 1, dir
			c.change(&cfg)
			i := launch(t, cfg)
			select {
			case <-i.done:
			case <-time.After(patience):
				t.Fatal("it goes on")
			}
			var wrong *app.SettingError
			if !errors.As(i.err, &wrong) || wrong.Env != c.env || !strings.Contains(i.err.Error(), c.says) || strings.Contains(i.err.Error(), "hidden") {
				t.Errorf("it ended with %v", i.err)
			}
		})
	}
}

// A server that could not take the largest broadcast is refused at the start, and the error says what to change.
func TestMaxAllowedPacket(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for packet, cases := range map[string][]struct {
		body int64
		env  string // empty: it fits
		says []string
	}{
		"16M": {{15 * mib / 2, "", nil}, {8 * mib, "REDRIVE_BROKER_MAX_BODY_BYTES", []string{`"8388608"`, "at most 7864320", "max_allowed_packet is 16777216", "17825792 or more"}}},
		"4M":  {{mib, "REDRIVE_DATABASE_DSN", []string{"max_allowed_packet is 4194304", "9437184 or more"}}},
	} {
		t.Run(packet, func(t *testing.T) {
			t.Parallel()
			dsn := storagetest.DSN(t, storagetest.On(storagetest.Server(t, "--max-allowed-packet="+packet)))
			for _, c := range cases {
				cfg := testConfig(dsn)
				cfg.BrokerMaxBodyBytes = c.body
				if c.env == "" {
					i := start(t, cfg)
					i.stage()
					i.broadcast("largest", strings.Repeat(`"`, int(c.body))).want(201)
					continue
				}
				i := launch(t, cfg)
				select {
				case <-i.done:
				case <-time.After(patience):
					t.Fatal("it goes on")
				}
				var wrong *app.SettingError
				if !errors.As(i.err, &wrong) || wrong.Env != c.env {
					t.Fatalf("it ended with %v", i.err)
				}
				for _, want := range c.says {
					if !strings.Contains(i.err.Error(), want) {
						t.Errorf("it does not say %s: %v", want, i.err)
					}
				}
			}
		})
	}
}

// Stopping while the database is still waited for is no error.
func TestStopWhileWaiting(t *testing.T) {
	t.Parallel()
	i := launch(t, testConfig("user:password@tcp(127.0.0.1:1)/redrive"))
	i.do("GET", "/livez", "").want(200)
	i.stop(t)
	if i.err != nil {
		t.Errorf("Run: %v", i.err)
	}
}

func TestSchemaBehind(t *testing.T) {
	t.Parallel()
	cfg := testConfig(storagetest.DSN(t, storagetest.Empty()))
	i := launch(t, cfg)
	select {
	case <-i.done:
	case <-time.After(patience):
		t.Fatal("it goes on with a schema that is behind")
	}
	if i.err == nil || !strings.Contains(i.err.Error(), "redrive migrate up") {
		t.Errorf("it does not say what to do: %v", i.err)
	}
	cfg.AutoMigrate = true
	start(t, cfg).do("GET", "/readyz", "").want(200)
}

// An instance that cannot open a consumer's token says so and does not start; one that cannot any more, because another
// instance seals with a key that it does not have, goes on with the others.
func TestSealKeyMissing(t *testing.T) {
	t.Parallel()
	const oldKey, newKey = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	cfg := testConfig(storagetest.DSN(t))
	cfg.SealKey = oldKey
	first := start(t, cfg)
	first.stage()
	good, other := newSink(t), newSink(t)
	first.addConsumer("good", "push", good.URL)

	cfg.SealKey = newKey
	i := launch(t, cfg)
	select {
	case <-i.done:
	case <-time.After(patience):
		t.Fatal("it goes on without the key")
	}
	var wrong *app.SettingError
	if !errors.As(i.err, &wrong) || wrong.Env != "REDRIVE_SEAL_KEY" || !strings.Contains(i.err.Error(), "orders/good") || strings.Contains(i.err.Error(), "good-token") {
		t.Errorf("it ended with %v", i.err)
	}

	cfg.SealKey = newKey + "," + oldKey
	second := start(t, cfg)
	second.addConsumer("other", "push", other.URL)
	first.do("GET", channel+"/consumer/other", "").want(200)
	if first.do("DELETE", channel+"/consumer/other/dlq", "", asConsumer("other")...).want(503).header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	first.do("POST", channel+"/consumer/other/dlq", "requeue=other-token", "Content-Type", "application/x-www-form-urlencoded").want(503)
	first.do("DELETE", channel+"/consumer/good/dlq", "", asConsumer("good")...).want(200)
	first.broadcast("m1", orderBody(1)).want(201)
	for name, s := range map[string]*sink{"good": good, "other": other} {
		eventually(t, "delivery to "+name, func() bool { return len(s.of("m1")) == 1 })
		if got := s.of("m1")[0].header.Get("X-Broker-Consumer-Token"); got != name+"-token" {
			t.Errorf("%s got the token %q", name, got)
		}
	}
}

// The token of an engine, which nobody ever needs, keeps no instance from starting.
func TestSealKeyOfAnEngineMissing(t *testing.T) {
	t.Parallel()
	cfg := testConfig(storagetest.DSN(t))
	store, err := storage.Open(storage.Options{DSN: cfg.DatabaseDSN, SealKeys: [][]byte{bytes.Repeat([]byte("k"), 32)}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	if _, err := store.PutEngineQueue(t.Context(), "hmac", "hmac-rotation-queue"); err != nil {
		t.Fatal(err)
	}
	start(t, cfg)
}

// Instances that start together on an empty database all get ready: one migrates, the others wait.
func TestAutoMigrateTogether(t *testing.T) {
	t.Parallel()
	cfg := testConfig(storagetest.DSN(t, storagetest.Empty()))
	cfg.AutoMigrate = true
	var all []*instance
	for range 4 {
		all = append(all, launch(t, cfg))
	}
	for _, i := range all {
		i.awaitReady(t)
	}
}

// A taken port ends the start before anything is consumed.
func TestTakenPort(t *testing.T) {
	t.Parallel()
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	cfg := testConfig("user:password@tcp(127.0.0.1:1)/redrive")
	cfg.HTTPListen = taken.Addr().String()
	a, err := app.New(app.Options{Config: cfg, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	err = a.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), cfg.HTTPListen) || !strings.Contains(err.Error(), "REDRIVE_HTTP_LISTEN") {
		t.Errorf("Run: %v", err)
	}
}

// Without a DSN an instance runs a server of its own, starts it again when it dies, and leaves no process behind.
func TestPrivateDatabase(t *testing.T) {
	t.Parallel()
	cfg := testConfig("")
	cfg.DataDir = t.TempDir()
	i := start(t, cfg)
	i.stage()
	good := newSink(t)
	i.addConsumer("good", "push", good.URL)
	i.broadcast("m1", orderBody(1)).want(201)

	first := serverPid(t, cfg.DataDir)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it works again on a new server", func() bool {
		return i.broadcast("m2", orderBody(2)).status != http.StatusServiceUnavailable && serverPid(t, cfg.DataDir) != first
	})
	eventually(t, "deliveries", func() bool { return len(good.of("m1")) > 0 && len(good.of("m2")) > 0 })

	if _, err := app.OpenDatabase(t.Context(), &cfg, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second process opens the private database: %v", err)
	}
	last := serverPid(t, cfg.DataDir)
	i.stop(t)
	if i.err != nil {
		t.Errorf("Run: %v", i.err)
	}
	if err := syscall.Kill(last, 0); err == nil {
		t.Errorf("the server process %d is still there", last)
	}
	// The data is there for whoever comes next.
	db, err := app.OpenDatabase(t.Context(), &cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	catalog, err := db.Store.Catalog(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := catalog.Channel("orders"); !ok {
		t.Error("the channel is gone")
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// serverPid is the private server's process id, 0 while there is none.
func serverPid(t *testing.T, dataDir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dataDir, "db", "server.pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return pid
}
