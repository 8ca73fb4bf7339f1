// Package storagetest gives every test a real database of its own, with the schema in it, in some tens of
// milliseconds, and takes it away when the test ends.
//
// The server is, in this order: the one that REDRIVE_TEST_DSN names (its user must be allowed to create and
// drop databases); a private MariaDB or MySQL that lives as long as the test process; MySQL 8.4 in a
// container, where a Docker engine answers. With none of them tests fail, they are never skipped.
//
// A package whose tests use it has
//
//	func TestMain(m *testing.M) { storagetest.Main(m) }
//
// Only tests import this package: it alone brings in testcontainers.
package storagetest

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	namePrefix = "redrive_test_"
	// orphanAge is when a test database that nobody dropped belongs to a run that was killed.
	orphanAge = 6 * time.Hour
	// lockTimeout bounds the wait for a test's own forgotten transactions when its database is dropped.
	lockTimeout = 5 * time.Second
	// dropTimeout bounds the drop itself: with a busy machine's disk, tens of tables have been seen to take 20 s.
	dropTimeout = 2 * time.Minute
)

// Option changes what DSN makes.
type Option func(*settings)

type settings struct {
	empty  bool
	server OwnServer
}

// Empty leaves the database without a schema.
func Empty() Option { return func(s *settings) { s.empty = true } }

// On makes the database on this server, and not on the one that tests share.
func On(server OwnServer) Option { return func(s *settings) { s.server = server } }

// DSN creates a database for t alone, with the newest schema, and returns how go-sql-driver/mysql reaches
// it. The database is dropped when t ends, after t's own cleanups; one that is then still locked, by a
// transaction that t left open, fails t.
func DSN(t testing.TB, opts ...Option) string {
	t.Helper()
	var set settings
	for _, opt := range opts {
		opt(&set)
	}
	name := newName()
	if set.server != nil {
		cfg, err := createOn(t.Context(), set.server, name, set.empty)
		if err != nil {
			t.Fatalf("making a test database: %v", err)
		}
		return cfg.FormatDSN() // it goes with its server
	}
	server, err := shared.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := server.create(t.Context(), name, set.empty); err != nil {
		t.Fatalf("making a test database: %v", err)
	}
	t.Cleanup(func() {
		// The test's own context has ended.
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		if err := server.drop(ctx, name); err != nil {
			t.Errorf("dropping the test database %s: %v (did the test leave a transaction open?)", name, err)
		}
	})
	return server.database(name).FormatDSN()
}

// NewDatabase is DSN for examples, which have no testing.TB: the caller drops the database.
func NewDatabase(ctx context.Context) (dsn string, drop func() error, err error) {
	server, err := shared.get(ctx)
	if err != nil {
		return "", nil, err
	}
	name := newName()
	if err := server.create(ctx, name, false); err != nil {
		return "", nil, err
	}
	drop = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
		defer cancel()
		return server.drop(ctx, name)
	}
	return server.database(name).FormatDSN(), drop, nil
}

// Config is DSN, parsed.
func Config(t testing.TB, opts ...Option) *mysql.Config {
	t.Helper()
	cfg, err := mysql.ParseDSN(DSN(t, opts...))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// OwnServer is a database server of one test's own.
type OwnServer interface {
	// DSN is how go-sql-driver/mysql of this process reaches the named database, also after a restart.
	DSN(database string) string
	// Kill ends it at once. No committed transaction is lost.
	Kill()
	// Restart starts it again on the same data, and returns once it answers.
	Restart(ctx context.Context) error
}

// Server starts a server for t alone with further flags of the server program, as "--max-connections=50": a private one,
// else MySQL 8.4 in a container. It and its data go when t ends.
func Server(t testing.TB, flags ...string) OwnServer {
	t.Helper()
	server, remove, err := startOwn(t.Context(), flags)
	if err != nil {
		t.Fatalf("this test needs a server of its own: %v", err)
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// newName carries its time, so that what a killed run leaves behind can be told from what is in use.
func newName() string {
	return namePrefix + strconv.FormatInt(time.Now().Unix(), 36) + "_" + strings.ToLower(rand.Text()[:12])
}

// madeAt reads the time back; ok is false for a name that is not ours.
func madeAt(name string) (at time.Time, ok bool) {
	rest, ours := strings.CutPrefix(name, namePrefix)
	stamp, _, complete := strings.Cut(rest, "_")
	seconds, err := strconv.ParseInt(stamp, 36, 64)
	return time.Unix(seconds, 0), ours && complete && err == nil
}
