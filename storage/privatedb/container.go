//go:build unix

package privatedb

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const (
	containerImage = "mysql:8.4"
	// engineTimeout bounds the engine's answer to whether it is there, and its removal of a container.
	engineTimeout = 20 * time.Second
)

// containerProgram is the server program of an image, if a container engine of this machine answers. The server works on
// this machine's folders and is reached by its socket in one of them, which takes an engine on the same kernel: Linux.
//
// It is downloaded if it is not there, however long that takes: ctx ends it.
func containerProgram(ctx context.Context, folders []string, log *slog.Logger) (program, error) {
	docker := commandIn(folders, "docker")
	if runtime.GOOS != "linux" || docker == "" {
		return program{}, ErrNoServer
	}
	asked, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	if exec.CommandContext(asked, docker, "version", "--format", "{{.Server.Version}}").Run() != nil {
		return program{}, ErrNoServer // the command without an engine
	}
	p := program{path: docker, image: containerImage, flavour: MySQL}
	if exec.CommandContext(ctx, docker, "image", "inspect", containerImage).Run() != nil {
		log.Info("downloading the database server for a container", "image", containerImage)
		if out, err := exec.CommandContext(ctx, docker, "pull", "--quiet", containerImage).CombinedOutput(); err != nil {
			return program{}, fmt.Errorf("private database: downloading %s: %w\n%s", containerImage, err, bytes.TrimSpace(out))
		}
	}
	path, args := p.command("", nil, []string{"--no-defaults", "--version"})
	out, err := exec.CommandContext(ctx, path, args...).Output()
	if err != nil {
		return program{}, fmt.Errorf("private database: %s of %s: %w", args, containerImage, err)
	}
	p.version = strings.TrimSpace(string(out)) + ", in a container"
	return p, nil
}

// commandIn returns the first executable file of that name in the folders, empty if there is none.
func commandIn(folders []string, name string) string {
	for _, folder := range folders {
		path := filepath.Join(folder, name)
		if info, err := os.Stat(path); filepath.IsAbs(folder) && err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// command is what runs the program with these flags to its end, in a container of that name where it has an image. Folders are
// those that it works in: a container has them at the same places.
func (p program) command(name string, folders, flags []string) (path string, args []string) {
	if p.image == "" {
		return p.path, flags
	}
	return p.path, p.run(name, folders, append([]string{"--entrypoint", "mysqld", p.image}, flags...))
}

// served is the first process of a container with a server: it passes on the order to stop, and kills the server when its
// input ends, which is when whoever started it is gone.
const served = `exec 3<&0
trap 'stop=yes; test -z "$server" || kill -TERM $server' TERM
mysqld "$@" </dev/null 3<&- & server=$!
test -z "$stop" || kill -TERM $server
{ cat <&3 >/dev/null; kill -KILL $server; } 2>/dev/null &
wait $server; status=$?
if [ $status -eq 143 ]; then wait $server; status=$?; fi # it was told to stop, and does
exit $status`

// server is what runs the program as a server. It ends with this process.
func (p program) server(name string, folders, flags []string) (*exec.Cmd, error) {
	if p.image == "" {
		return exec.Command(p.path, flags...), nil
	}
	cmd := exec.Command(p.path, p.run(name, folders, append([]string{"--interactive", "--entrypoint", "sh", p.image, "-c", served, "mysqld"}, flags...))...)
	_, err := cmd.StdinPipe()
	return cmd, err
}

func (p program) run(name string, folders, rest []string) []string {
	args := []string{"run", "--rm", "--network", "none", "--log-driver", "none", "--user", fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid())}
	if name != "" {
		args = append(args, "--name", name)
	}
	for _, folder := range folders {
		args = append(args, "--mount", "type=bind,source="+folder+",target="+folder)
	}
	return append(args, rest...)
}

// pidFile is where a server on dir writes its process id. In a container it has another than here, which is nobody's
// business: see notePid.
func (p program) pidFile(dir string) string {
	if p.image != "" {
		return filepath.Join(tempFor(filepath.Join(dir, dataName)), pidName)
	}
	return filepath.Join(dir, pidName)
}

// notePid writes the process id of a container's command to where a program of this machine writes its own.
func (p program) notePid(dir string, pid int) error {
	if p.image == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(dir, pidName), []byte(strconv.Itoa(pid)+"\n"), 0o600)
}

// end removes the container of that name, with what runs in it, as kill -9 would. Where there is none, and for a program
// of this machine, it does nothing.
func (p program) end(name string) error {
	if p.image == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), engineTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, p.path, "rm", "--force", name).CombinedOutput()
	if err != nil && !strings.Contains(strings.ToLower(string(out)), "no such container") {
		return fmt.Errorf("removing the container %s: %w", name, errors.Join(err, errors.New(string(bytes.TrimSpace(out)))))
	}
	return nil
}

// containerName is that of the one container that may work in a folder.
func containerName(folder string) string {
	return fmt.Sprintf("redrive-%x", sha256.Sum256([]byte(folder)))[:24]
}
