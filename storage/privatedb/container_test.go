//go:build linux

package privatedb

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// script makes an executable file and returns its folder.
func script(t *testing.T, name, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// engine stands in for a container engine's command: it notes what it is asked for, and answers.
const engine = `echo "$*" >>"$0.calls"
case "$1 $2" in
"version "*) exit %d ;;
"image "*) test -e "$0.image" ;;
"pull "*) touch "$0.image" ;;
"run "*) echo "mysqld  Ver 8.4.6 for Linux" ;;
esac`

func TestContainerWhereThereIsNoProgram(t *testing.T) {
	t.Parallel()
	folder := script(t, "docker", fmt.Sprintf(engine, 0))
	find := func(o Options, folder string) (program, error) {
		o.Dir, o.Log = t.TempDir(), slog.New(slog.DiscardHandler)
		return o.findProgram(t.Context(), []string{folder})
	}
	for range 2 {
		p, err := find(Options{}, folder)
		if err != nil || p.image != "mysql:8.4" || p.flavour != MySQL || p.path != filepath.Join(folder, "docker") || !strings.HasPrefix(p.version, "mysqld  Ver 8.4.6") {
			t.Errorf("%+v, %v", p, err)
		}
	}
	calls, err := os.ReadFile(filepath.Join(folder, "docker.calls"))
	if n := strings.Count(string(calls), "pull "); err != nil || n != 1 {
		t.Errorf("downloaded %d times (%v):\n%s", n, err, calls)
	}
	silent := script(t, "docker", fmt.Sprintf(engine, 1))
	for name, f := range map[string]func() (program, error){
		"the engine does not answer": func() (program, error) { return find(Options{}, silent) },
		"it is not wanted":           func() (program, error) { return find(Options{NoContainer: true}, folder) },
		"MariaDB is wanted":          func() (program, error) { return find(Options{Flavour: MariaDB}, folder) },
	} {
		if p, err := f(); !errors.Is(err, ErrNoServer) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}

func TestContainerHasItsFolders(t *testing.T) {
	t.Parallel()
	p := program{path: "/bin/docker", image: containerImage, flavour: MySQL}
	cmd, err := p.server("redrive-1", []string{"/data", "/sock"}, []string{"--datadir=/data/data"})
	if err != nil {
		t.Fatal(err)
	}
	_, once := p.command("redrive-1", []string{"/data", "/sock"}, []string{"--datadir=/data/data"})
	for _, args := range [][]string{cmd.Args, once} {
		for _, want := range []string{"type=bind,source=/data,target=/data", "type=bind,source=/sock,target=/sock", "redrive-1", fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid()), "none"} {
			if !slices.Contains(args, want) {
				t.Errorf("%q is missing: %q", want, args)
			}
		}
		if args[len(args)-1] != "--datadir=/data/data" {
			t.Errorf("the server's flags are not last: %q", args)
		}
	}
}

// server says that it runs, and ends with 3 when it is told to stop, or by itself with what its flag says.
const server = `trap 'echo stopping; exit 3' TERM
echo running
[ "$1" = --end ] && exit "$2"
while :; do sleep 1 & wait $!; done`

// In a container, its first process ends the server when its owner is gone or says so, and with the server.
func TestContainerEndsWithItsOwner(t *testing.T) {
	t.Parallel()
	folder := script(t, "mysqld", server)
	for name, tt := range map[string]struct {
		flags []string
		end   func(owner io.Closer, p *os.Process)
		code  int
	}{
		"the owner is gone":        {nil, func(owner io.Closer, _ *os.Process) { _ = owner.Close() }, 137},
		"the owner says stop":      {nil, func(_ io.Closer, p *os.Process) { _ = p.Signal(syscall.SIGTERM) }, 3},
		"the server ends":          {[]string{"--end", "7"}, func(io.Closer, *os.Process) {}, 7},
		"the server ends in order": {[]string{"--end", "0"}, func(io.Closer, *os.Process) {}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", served, "mysqld"}, tt.flags...)...)
			cmd.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			owner, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "running\n" {
				t.Fatalf("%q, %v", line, err)
			}
			tt.end(owner, cmd.Process)
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != tt.code {
				t.Errorf("it ended with %d, want %d", code, tt.code)
			}
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what a container takes along: the reader of its input
		})
	}
}
