package storagetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/redrive-mq/redrive/storage/privatedb"
)

const (
	dsnVariable = "REDRIVE_TEST_DSN"
	// leftoverAge is when a private server's folder that no server uses is from a run that was killed.
	leftoverAge = 10 * time.Minute
)

var errNoDatabase = errors.New("tests need a real database: set " + dsnVariable +
	" to a MySQL or MariaDB server's DSN, or install one (apt-get install mariadb-server-core), or start a Docker engine")

// shared is the server of all tests in this process: started by the first that asks, stopped by Main.
var shared sharedServer

type sharedServer struct {
	mu     sync.Mutex
	tried  bool
	server *dbServer
	err    error
	stops  func() error
	leaks  []goleak.Option // goroutines of the server's own machinery
}

func (s *sharedServer) get(ctx context.Context) (*dbServer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.tried {
		s.tried = true
		s.err = s.start(ctx)
	}
	return s.server, s.err
}

func (s *sharedServer) start(ctx context.Context) (err error) {
	if dsn := os.Getenv(dsnVariable); dsn != "" {
		if s.server, err = newServer(dsn); err != nil {
			return fmt.Errorf("%s: %w", dsnVariable, err)
		}
		if err := s.server.dropOrphans(ctx); err != nil {
			return fmt.Errorf("the server that %s names: %w", dsnVariable, err)
		}
		return nil
	}
	private, remove, err := startPrivate(ctx, nil)
	if err == nil {
		s.stops = remove
		s.server, err = newServer(private.DSN(""))
		return err
	}
	if !errors.Is(err, privatedb.ErrNoServer) {
		return err
	}
	if !engineAnswers(ctx) {
		return errNoDatabase
	}
	container, err := startContainer(ctx, "--innodb-flush-log-at-trx-commit=2")
	if err != nil {
		return err
	}
	s.stops = container.remove
	s.leaks = append(s.leaks, goleak.IgnoreCurrent()) // the watcher that removes it should this process be killed
	s.server, err = newServer(container.DSN(""))
	return err
}

// stop takes the server away if it was started here. It returns the goroutines that may be left.
func (s *sharedServer) stop() ([]goleak.Option, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.server != nil {
		err = s.server.admin.Close()
	}
	if s.stops != nil {
		err = errors.Join(err, s.stops())
	}
	return s.leaks, err
}

// startOwn starts a server of a test's own; the function that it returns ends it and removes its data.
func startOwn(ctx context.Context, flags []string) (OwnServer, func() error, error) {
	private, remove, err := startPrivate(ctx, flags)
	if !errors.Is(err, privatedb.ErrNoServer) || !engineAnswers(ctx) {
		return private, remove, err
	}
	container, err := startContainer(ctx, flags...)
	if err != nil {
		return nil, nil, err
	}
	container.stays()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.leaks = append(shared.leaks, goleak.IgnoreCurrent()) // see start
	return container, container.remove, nil
}

// startPrivate starts a private server; the function that it returns ends it and removes its data.
func startPrivate(ctx context.Context, flags []string) (*privatedb.Server, func() error, error) {
	base := filepath.Join(os.TempDir(), fmt.Sprintf("redrive-test-%d", os.Geteuid()))
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, nil, err
	}
	leftovers, err := filepath.Glob(filepath.Join(base, "server-*"))
	if err != nil {
		return nil, nil, err
	}
	for _, dir := range leftovers {
		// Another process may be removing it just now, and a leftover harms nobody.
		_ = privatedb.RemoveUnused(dir, leftoverAge)
	}
	dir, err := os.MkdirTemp(base, "server-")
	if err != nil {
		return nil, nil, err
	}
	server, err := privatedb.Start(ctx, privatedb.Options{
		Dir: dir, Ephemeral: true, NoContainer: true, TemplateDir: filepath.Join(base, "template"), Settings: flags,
	})
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	return server, func() error {
		diedBy := server.Err()
		server.Kill() // nobody wants its data
		return errors.Join(diedBy, os.RemoveAll(dir))
	}, nil
}

// Main runs the tests of a package, stops the server, and ends the process: with a failure too when goroutines
// are left, unless allowed names them.
func Main(m *testing.M, allowed ...goleak.Option) {
	code := m.Run()
	leaks, err := shared.stop()
	if err == nil && code == 0 {
		err = goleak.Find(append(leaks, allowed...)...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "after the tests:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}
