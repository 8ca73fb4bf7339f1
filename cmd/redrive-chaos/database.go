//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/redrive-mq/redrive/storage/privatedb"
)

// database is a server of the run's own that can be killed and brought back on the same data and DSN.
type database interface {
	DSN(database string) string
	Kill() error
	Restart(ctx context.Context) error
	Stop(ctx context.Context) error
}

// startDatabase starts one that is durable: what it committed must survive its death.
func startDatabase(ctx context.Context, cfg config, dir string) (database, error) {
	if cfg.TestDB != "" {
		return startTool(ctx, cfg.TestDB, cfg.Flavour, filepath.Join(dir, "db"))
	}
	server, err := privatedb.Start(ctx, privatedb.Options{Dir: filepath.Join(dir, "db"), Flavour: cfg.Flavour})
	if err != nil {
		return nil, err
	}
	return private{server}, nil
}

type private struct{ *privatedb.Server }

func (p private) Kill() error { p.Server.Kill(); return nil }

// tool drives a server through an executable; see config.TestDB.
type tool struct {
	path, dir string
	port      int
}

func startTool(ctx context.Context, path, flavour, dir string) (*tool, error) {
	if flavour == "" {
		flavour = "mariadb"
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	t := &tool{path: path, dir: dir, port: port}
	if err := t.run(ctx, "start", flavour, dir, strconv.Itoa(port)); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *tool) DSN(database string) string {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.DBName = "root", "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(t.port)), database
	return cfg.FormatDSN()
}

func (t *tool) Kill() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return t.run(ctx, "kill", t.dir)
}

func (t *tool) Restart(ctx context.Context) error { return t.run(ctx, "restart", t.dir) }

func (t *tool) Stop(ctx context.Context) error { return t.run(ctx, "stop", t.dir) }

func (t *tool) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, t.path, args...)
	cmd.WaitDelay = time.Second // the server it leaves running may hold its output open
	out, err := cmd.CombinedOutput()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("%s %s: %w\n%s", t.path, strings.Join(args, " "), err, out)
	}
	return nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
