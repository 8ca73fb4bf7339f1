//go:build unix

package privatedb

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// ownerDir, in the environment of this test program, makes it the owner that TestServerEndsWithItsOwner kills.
const ownerDir = "PRIVATEDB_TEST_OWNER_DIR"

var templateDir string // shared by all tests, so that most of them copy and do not initialise

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerDir); dir != "" {
		owner(dir)
	}
	var err error
	if templateDir, err = os.MkdirTemp("", "privatedb-test-"); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := os.RemoveAll(templateDir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// owner starts a server and waits to be killed.
func owner(dir string) {
	s, err := Start(context.Background(), Options{Dir: dir, Flavour: os.Getenv("PRIVATEDB_TEST_FLAVOUR"), Ephemeral: true})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("pid", s.Pid())
	select {} // the server's own goroutine blocks in a system call, so the runtime sees no deadlock
}

// eachFlavour runs test on every flavour of server that this machine has, else on one in a container, and fails if there is none.
func eachFlavour(t *testing.T, test func(t *testing.T, flavour string)) {
	t.Helper()
	t.Parallel()
	found := programs(t.Context(), searchPath())
	if len(found) == 0 {
		p, err := containerProgram(t.Context(), searchPath(), slog.Default())
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, p)
	}
	for _, p := range found {
		t.Run(p.flavour, func(t *testing.T) {
			t.Parallel()
			test(t, p.flavour)
		})
	}
}

func start(t *testing.T, opts Options) *Server {
	t.Helper()
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	s, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

func quick(flavour string) Options {
	return Options{Flavour: flavour, Ephemeral: true, TemplateDir: templateDir}
}

func query(t *testing.T, s *Server, database, statement string) string {
	t.Helper()
	db, err := sql.Open("mysql", s.DSN(database))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var answer string
	if err := db.QueryRowContext(t.Context(), statement).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return answer
}

func execute(t *testing.T, s *Server, statements ...string) {
	t.Helper()
	db, err := sql.Open("mysql", s.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, statement := range statements {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func fill(t *testing.T, s *Server) {
	t.Helper()
	execute(t, s, "CREATE DATABASE keep", "CREATE TABLE keep.t (n INT PRIMARY KEY)", "INSERT INTO keep.t VALUES (42)")
}

func wantKept(t *testing.T, s *Server) {
	t.Helper()
	if got := query(t, s, "keep", "SELECT n FROM t"); got != "42" {
		t.Errorf("the row is %s after a new start, want 42", got)
	}
}

func TestDataOutlivesStopAndKill(t *testing.T) {
	eachFlavour(t, func(t *testing.T, flavour string) {
		opts := quick(flavour)
		opts.Dir = t.TempDir()
		s := start(t, opts)
		if s.Flavour() != flavour {
			t.Errorf("flavour %s, want %s", s.Flavour(), flavour)
		}
		fill(t, s)
		dsn := s.DSN("keep")

		if err := s.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Stop(t.Context()); err != nil {
			t.Errorf("a second Stop: %v", err)
		}
		if err := s.Err(); err != nil {
			t.Errorf("Err after Stop: %v", err)
		}

		opts.Flavour = "" // the data says which
		again := start(t, opts)
		wantKept(t, again)
		if again.DSN("keep") != dsn {
			t.Errorf("DSN %s after a new start, want %s", again.DSN("keep"), dsn)
		}
		again.Kill()
		select {
		case <-again.Done():
		default:
			t.Error("Done is open after Kill")
		}
		if err := again.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantKept(t, again)
		before := again.Pid()
		if err := again.Restart(t.Context()); err != nil { // of one that runs
			t.Fatal(err)
		}
		if again.Pid() == before || again.DSN("keep") != dsn {
			t.Errorf("after Restart: pid %d (was %d), DSN %s, want another process at %s", again.Pid(), before, again.DSN("keep"), dsn)
		}
		wantKept(t, again)
	})
}

// Without options it is durable, closed to the network, and outside of our process group.
func TestDefaults(t *testing.T) {
	eachFlavour(t, func(t *testing.T, flavour string) {
		s := start(t, Options{Flavour: flavour, Settings: []string{"--max-connections=77"}})
		for variable, want := range map[string]string{
			"innodb_flush_log_at_trx_commit": "1",
			"innodb_doublewrite":             "1",
			"innodb_buffer_pool_size":        strconv.Itoa(256 << 20),
			"skip_networking":                "1",
			"skip_name_resolve":              "1",
			"log_bin":                        "0",
			"max_connections":                "77", // Settings win
		} {
			if got := query(t, s, "", "SELECT @@"+variable); got != want && !(want == "1" && got == "ON") {
				t.Errorf("%s is %s, want %s", variable, got, want)
			}
		}
		if got, want := query(t, s, "", "SELECT @@tmpdir"), tempFor(filepath.Join(s.Dir(), dataName)); got != want {
			t.Errorf("tmpdir %s, want %s: other servers remove temporary tables where they have theirs", got, want)
		}
		group, err := syscall.Getpgid(s.Pid())
		if err != nil || group == syscall.Getpgrp() {
			t.Errorf("process group %d (%v): that is ours, Ctrl-C would hit the server", group, err)
		}
		if info, err := os.Stat(filepath.Join(s.Dir(), dataName)); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("the data is open to others: %v %v", info.Mode(), err)
		}
	})
}

func TestOneServerPerDir(t *testing.T) {
	eachFlavour(t, func(t *testing.T, flavour string) {
		opts := quick(flavour)
		opts.Dir = t.TempDir()
		s := start(t, opts)
		_, err := Start(t.Context(), opts)
		inUse, ok := errors.AsType[*InUseError](err)
		if !ok {
			t.Fatalf("a second server in one folder: %v, want an InUseError", err)
		}
		if inUse.Dir != opts.Dir || inUse.Pid != os.Getpid() || !strings.Contains(err.Error(), opts.Dir) {
			t.Errorf("error %q does not name folder %s and process %d", err, opts.Dir, os.Getpid())
		}
		if query(t, s, "", "SELECT 1") != "1" {
			t.Error("the first server does not answer any more")
		}
		if err := s.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		other := map[string]string{MariaDB: MySQL, MySQL: MariaDB}[flavour]
		opts.Flavour = other
		if _, err := Start(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "was made by "+flavour) {
			t.Errorf("%s on the data of %s: %v", other, flavour, err)
		}
	})
}

// Whatever ends the owner, its server goes too, and the next owner finds the folder free and the data whole.
func TestServerEndsWithItsOwner(t *testing.T) {
	eachFlavour(t, func(t *testing.T, flavour string) {
		opts := quick(flavour)
		opts.Dir = t.TempDir()
		first := start(t, opts)
		fill(t, first)
		if err := first.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}

		program, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), ownerDir+"="+opts.Dir, "PRIVATEDB_TEST_FLAVOUR="+flavour)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Process.Kill()
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(line), "pid "))
		if err != nil {
			t.Fatalf("the owner says %q", line)
		}
		if !alive(pid) {
			t.Fatal("the owner's server does not live")
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()

		wantKept(t, start(t, opts))
		if runtime.GOOS == "linux" && running(pid) {
			t.Errorf("server %d outlived its owner", pid)
		}
	})
}

// running is false for a process that is gone or only waits for somebody to collect its exit status.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}

func TestServerThatDiesByItself(t *testing.T) {
	eachFlavour(t, func(t *testing.T, flavour string) {
		s := start(t, quick(flavour))
		if err := s.Err(); err != nil {
			t.Fatalf("Err while it runs: %v", err)
		}
		if err := syscall.Kill(s.Pid(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.Done():
		case <-time.After(20 * time.Second):
			t.Fatal("Done stays open")
		}
		if err := s.Err(); err == nil || !strings.Contains(err.Error(), "ended by itself") {
			t.Errorf("Err %v, want that it ended by itself", err)
		}
		if err := s.Stop(t.Context()); err != nil {
			t.Errorf("Stop of a dead server: %v", err)
		}
	})
}

func TestStopIsBounded(t *testing.T) {
	eachFlavour(t, func(t *testing.T, flavour string) {
		s := start(t, quick(flavour))
		fill(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Stop(ctx); err == nil || !strings.Contains(err.Error(), "was killed") {
			t.Errorf("Stop without time: %v, want that it was killed", err)
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantKept(t, s)
	})
}

func TestStartFailureQuotesTheLog(t *testing.T) {
	eachFlavour(t, func(t *testing.T, flavour string) {
		opts := quick(flavour)
		opts.Dir, opts.Settings = t.TempDir(), []string{"--no-such-flag-at-all"}
		_, err := Start(t.Context(), opts)
		if err == nil || !strings.Contains(err.Error(), "no-such-flag-at-all") || !strings.Contains(err.Error(), opts.Dir) {
			t.Fatalf("error %v, want the folder and what the log says of the flag", err)
		}
		opts.Settings = nil // and nothing is left that would be in the way
		start(t, opts)
	})
}

func TestCancelledStartLeavesNothing(t *testing.T) {
	eachFlavour(t, func(t *testing.T, flavour string) {
		opts := Options{Flavour: flavour, Dir: t.TempDir(), Ephemeral: true} // no template: it is cut off while making its data
		ctx, cancel := context.WithCancelCause(t.Context())
		stopped := errors.New("the test is over")
		go func() {
			defer cancel(stopped)
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for t.Context().Err() == nil {
				if _, err := os.Stat(filepath.Join(opts.Dir, dataName+".unfinished")); err == nil {
					return
				}
				<-tick.C
			}
		}()
		if _, err := Start(ctx, opts); !errors.Is(err, stopped) {
			t.Fatalf("error %v, want %v", err, stopped)
		}
		if _, err := os.Stat(filepath.Join(opts.Dir, dataName)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("half made data is there: %v", err)
		}
		start(t, opts)
	})
}

func TestLongDirGetsAShortSocket(t *testing.T) {
	eachFlavour(t, func(t *testing.T, flavour string) {
		opts := quick(flavour)
		opts.Dir = filepath.Join(t.TempDir(), strings.Repeat("long", 30))
		s := start(t, opts)
		if len(s.socket) > maxSocketPath {
			t.Fatalf("socket %s has %d bytes", s.socket, len(s.socket))
		}
		dsn := s.DSN("")
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.DSN("") != dsn || query(t, s, "", "SELECT 1") != "1" {
			t.Errorf("DSN %s after Restart, want %s", s.DSN(""), dsn)
		}
		s.Kill()
		if _, err := os.Stat(filepath.Dir(s.socket)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket's folder is left behind: %v", err)
		}
	})
}

func TestManyProcessesShareATemplate(t *testing.T) {
	eachFlavour(t, func(t *testing.T, flavour string) {
		opts := quick(flavour)
		opts.TemplateDir = t.TempDir()
		var group sync.WaitGroup
		for range 3 {
			mine := opts
			mine.Dir = t.TempDir()
			group.Go(func() {
				s, err := Start(t.Context(), mine)
				if err != nil {
					t.Error(err)
					return
				}
				s.Kill()
			})
		}
		group.Wait()
		made, err := filepath.Glob(filepath.Join(opts.TemplateDir, "*", dataName))
		if err != nil || len(made) != 1 {
			t.Errorf("templates %v (%v), want one", made, err)
		}
	})
}

// MariaDB's own script may be missing where only the server's core is installed.
func TestBootstrapWithoutScript(t *testing.T) {
	t.Parallel()
	for _, p := range programs(t.Context(), searchPath()) {
		if p.flavour != MariaDB {
			continue
		}
		opts, err := Options{Dir: t.TempDir(), Ephemeral: true}.validated()
		if err != nil {
			t.Fatal(err)
		}
		s := &Server{opts: opts, program: p}
		lock, err := lockDir(t.Context(), opts.Dir)
		if err != nil {
			t.Fatal(err)
		}
		data := filepath.Join(opts.Dir, dataName)
		err = whole(data, func(unfinished string) error {
			return errors.Join(clearTemp(data), os.Mkdir(unfinished, 0o700), s.bootstrap(t.Context(), unfinished, lock))
		})
		lock.Close()
		if err != nil {
			t.Fatal(err)
		}
		fill(t, start(t, opts))
	}
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	if err := os.WriteFile(filepath.Join(empty, "mysqld"), []byte("not a program"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, wanted := range []string{"", MariaDB, MySQL} {
		_, err := Options{Dir: t.TempDir(), Flavour: wanted}.findProgram(t.Context(), []string{empty, "."})
		if !errors.Is(err, ErrNoServer) {
			t.Errorf("wanted %q: %v, want ErrNoServer", wanted, err)
		}
	}
	if lines := strings.Count(ErrNoServer.Error(), "\n"); lines != 3 {
		t.Errorf("the text has %d lines after its first, want 3", lines)
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for _, opts := range []Options{
		{},
		{Dir: "x", Flavour: "postgres"},
		{Dir: "x", BufferPoolBytes: -1},
		{Dir: "x", StartTimeout: -1},
	} {
		if _, err := Start(t.Context(), opts); err == nil {
			t.Errorf("%+v was accepted", opts)
		}
	}
}

func TestRemoveUnused(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Ephemeral: true, TemplateDir: templateDir, Dir: filepath.Join(t.TempDir(), "d")})
	exists := func() bool { _, err := os.Stat(s.Dir()); return err == nil }
	if err := RemoveUnused(s.Dir(), 0); err != nil || !exists() {
		t.Fatalf("a folder in use: %v, exists %t", err, exists())
	}
	s.Kill()
	if err := RemoveUnused(s.Dir(), time.Hour); err != nil || !exists() {
		t.Fatalf("a folder just used: %v, exists %t", err, exists())
	}
	if err := RemoveUnused(s.Dir(), 0); err != nil || exists() {
		t.Fatalf("a folder out of use: %v, exists %t", err, exists())
	}
}
