//go:build unix

// Package privatedb runs a MariaDB or MySQL server that belongs to this process alone: for those who start
// the program without a database, and for tests.
//
// The server keeps its data under one folder and finds it again at the next start, also after a crash. It
// listens on a Unix socket in a folder that only this user can enter, on no port. It ends with this
// process: in order through Stop, and on Linux also when this process is killed.
//
// It is not for production under load, has no replication and takes no backups. The server is a program of this machine, else
// one in a container where a Docker engine answers; with neither Start fails with ErrNoServer, which says how to get one.
package privatedb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
)

// The two families of servers, as Options.Flavour names them.
const (
	MariaDB = "mariadb"
	MySQL   = "mysql"
)

const (
	defaultBufferPool   = 256 << 20
	ephemeralBufferPool = 64 << 20
	defaultStartTimeout = 2 * time.Minute
	stopTimeout         = 10 * time.Second
	readyPoll           = 10 * time.Millisecond
)

// Options says what server to start. Only Dir must be set.
type Options struct {
	// Dir is the folder for the data, the log (server.log), and what else the server needs. It is made if it is
	// missing, open to this user only. One server at a time can use it.
	Dir string

	// Flavour is MariaDB, MySQL, or empty: what the data in Dir was made by, else MariaDB, else MySQL.
	Flavour string

	// Settings are further flags for the server, as "--max-connections=50"; they win over this package's own.
	Settings []string

	// BufferPoolBytes is the memory for cached pages; 0 is 256 MiB, or 64 MiB with Ephemeral.
	BufferPoolBytes int64

	// Ephemeral trades what only a crash of the whole machine can take for speed: commits reach the operating
	// system and not the disk, so they survive Kill. For tests.
	Ephemeral bool

	// NoContainer leaves it at the server programs of this machine. Otherwise, where it has none, MySQL 8.4 runs in a container
	// of a Docker engine that answers (Linux only), and is downloaded for it if need be.
	NoContainer bool

	// TemplateDir, unless empty, is a folder that keeps a copy of freshly initialised data for each server
	// program. Making a new Dir is then a copy, not an initialisation of seconds. Processes may share it.
	TemplateDir string

	// StartTimeout bounds the wait for the server to answer, which includes its recovery after a crash; 0 is 2 minutes.
	StartTimeout time.Duration

	// Log receives starts and stops; nil: nobody does.
	Log *slog.Logger
}

func (o Options) validated() (Options, error) {
	if o.Dir == "" {
		return o, errors.New("private database: no folder is named")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return o, fmt.Errorf("private database: %w", err)
	}
	o.Dir = dir
	switch o.Flavour {
	case "", MariaDB, MySQL:
	default:
		return o, fmt.Errorf("private database: flavour %q: must be %s, %s or empty", o.Flavour, MariaDB, MySQL)
	}
	if o.BufferPoolBytes < 0 || o.StartTimeout < 0 {
		return o, errors.New("private database: the buffer pool and the start timeout must not be negative")
	}
	if o.BufferPoolBytes == 0 {
		o.BufferPoolBytes = defaultBufferPool
		if o.Ephemeral {
			o.BufferPoolBytes = ephemeralBufferPool
		}
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = defaultStartTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

// Server is a database server that this process started. Its methods may be called from any goroutine.
type Server struct {
	opts    Options
	program program // this and socket stay what the first launch made them
	socket  string

	starting sync.Mutex // held by Restart from end to end
	mu       sync.Mutex
	current  *process
}

// Start starts a server on opts.Dir, making its data at the first start, and returns once it answers.
//
// Errors: ErrNoServer if the machine has no server program, nor an engine for containers; *InUseError if another process uses the folder;
// otherwise the text quotes the end of the server's log.
func Start(ctx context.Context, opts Options) (*Server, error) {
	opts, err := opts.validated()
	if err != nil {
		return nil, err
	}
	s := &Server{opts: opts}
	if s.current, err = s.launch(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Restart stops the server if it runs and starts it again on the same data, at the same DSN.
func (s *Server) Restart(ctx context.Context) error {
	s.starting.Lock()
	defer s.starting.Unlock()
	_ = s.Stop(ctx) // one that had to be killed recovers at its start
	next, err := s.launch(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = next
	return nil
}

// launch does everything from an empty or a used folder to a server that answers.
func (s *Server) launch(ctx context.Context) (p *process, err error) {
	begin := time.Now()
	if err := os.MkdirAll(s.opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("private database: %w", err)
	}
	lock, err := lockDir(ctx, s.opts.Dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if p == nil {
			lock.Close()
		}
	}()
	if s.program.path == "" {
		if s.program, err = s.opts.findProgram(ctx, searchPath()); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.opts.StartTimeout,
		fmt.Errorf("no answer within %s", s.opts.StartTimeout))
	defer cancel()
	if err := s.initialise(ctx, lock); err != nil {
		return nil, fmt.Errorf("private database: making its data in %s: %w", s.opts.Dir, err)
	}
	socket, err := socketPath(s.opts.Dir)
	switch {
	case err != nil:
		return nil, err
	case s.socket == "":
		s.socket = socket
	case s.socket != socket:
		return nil, fmt.Errorf("private database: its socket %s can no longer be made", s.socket)
	}
	if err := clearTemp(filepath.Join(s.opts.Dir, dataName)); err != nil {
		return nil, fmt.Errorf("private database: %w", err)
	}
	name := containerName(s.opts.Dir)
	end := func() error { return s.program.end(name) }
	if err := end(); err != nil { // of an owner that was killed
		return nil, fmt.Errorf("private database: %w", err)
	}
	cmd, err := s.program.server(name, slices.Compact([]string{s.opts.Dir, filepath.Dir(socket)}), s.flags())
	if err != nil {
		return nil, fmt.Errorf("private database: %w", err)
	}
	p, err = startProcess(cmd, filepath.Join(s.opts.Dir, "server.log"), end, func() {
		removeSocket(s.opts.Dir, socket)
		_ = os.Remove(filepath.Join(s.opts.Dir, pidName)) // one that was killed leaves it
		lock.Close()
	}, lock)
	if err != nil {
		return nil, fmt.Errorf("private database: %w", err)
	}
	if err := errors.Join(s.program.notePid(s.opts.Dir, p.pid()), s.awaitReady(ctx, p)); err != nil {
		p.kill()
		return nil, fmt.Errorf("private database: %s in %s did not start: %w\n%s", s.program.path, s.opts.Dir, err, p.logTail())
	}
	s.opts.Log.Info("private database started", "flavour", s.program.flavour, "version", s.program.version,
		"dir", s.opts.Dir, "pid", p.pid(), "took", time.Since(begin))
	return p, nil
}

// awaitReady returns once the server lets us log in.
func (s *Server) awaitReady(ctx context.Context, p *process) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-p.done:
			cancel(p.err)
		case <-ctx.Done():
		}
	}()
	return AwaitAnswer(ctx, s.config(""))
}

// AwaitAnswer returns once a server that starts lets us log in. The error is ctx's cause and what the server last said.
func AwaitAnswer(ctx context.Context, cfg *mysql.Config) error {
	cfg = cfg.Clone()
	cfg.Logger = &mysql.NopLogger{} // it is expected to refuse for a while
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		conn, err := connector.Connect(ctx)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

func (s *Server) config(database string) *mysql.Config {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.DBName = "root", "unix", s.socket, database
	return cfg
}

// DSN returns how go-sql-driver/mysql reaches the named database (empty: none chosen) with all rights. It stays
// the same over restarts. The database need not exist yet.
func (s *Server) DSN(database string) string { return s.config(database).FormatDSN() }

// Flavour returns MariaDB or MySQL.
func (s *Server) Flavour() string { return s.program.flavour }

// Version returns what the server program says of itself, on one line.
func (s *Server) Version() string { return s.program.version }

// Dir returns the folder with the server's data, as an absolute path.
func (s *Server) Dir() string { return s.opts.Dir }

// Pid returns the server's process id; after its end, the id that it had.
func (s *Server) Pid() int { return s.process().pid() }

// Done is closed when the server has ended and its folder is free, for whatever reason. After a Restart it
// is another channel.
func (s *Server) Done() <-chan struct{} { return s.process().done }

// Err returns nil while the server runs and if it ended because it was told to; otherwise why it ended by
// itself, with the end of its log.
func (s *Server) Err() error {
	p := s.process()
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Stop shuts the server down in order and returns when its process is gone. When ctx ends first, or after
// 10 s, it kills the process and says so; committed data survives that too. Calls after the first return nil.
func (s *Server) Stop(ctx context.Context) error {
	p := s.process()
	if p.finished() {
		return nil
	}
	p.told.Store(true)
	p.signal(syscall.SIGTERM)
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-p.done:
		s.opts.Log.Info("private database stopped", "dir", s.opts.Dir)
		return nil
	case <-ctx.Done():
	case <-timeout.C:
	}
	p.kill()
	return fmt.Errorf("private database in %s: it did not stop in time and was killed; it recovers at its next start", s.opts.Dir)
}

// Kill ends the server at once, as a crash of its process would, and returns when it is gone.
func (s *Server) Kill() { s.process().kill() }

func (s *Server) process() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}
