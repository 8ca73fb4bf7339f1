//go:build unix

package privatedb

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	dataName    = "data"    // in Dir; it has its name only once it is whole
	flavourName = "flavour" // in data: which flavour made it
)

// initialise makes the data of a new server, from the template if there is one. Cut off at any point, it
// leaves nothing that the next start would take for data.
func (s *Server) initialise(ctx context.Context, lock *os.File) error {
	data := filepath.Join(s.opts.Dir, dataName)
	if _, err := os.Stat(data); err == nil || !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if s.opts.TemplateDir == "" {
		return s.makeData(ctx, data, lock)
	}
	template, err := s.template(ctx)
	if err != nil {
		return err
	}
	return whole(data, func(unfinished string) error { return os.CopyFS(unfinished, os.DirFS(template)) })
}

// template returns a folder with fresh data of this program, making it if it is the first to ask.
func (s *Server) template(ctx context.Context) (string, error) {
	info, err := os.Stat(s.program.path)
	if err != nil {
		return "", err
	}
	key := sha256.Sum256(fmt.Append(nil, s.program, info.Size(), info.ModTime(), s.commonFlags("")))
	dir := filepath.Join(s.opts.TemplateDir, fmt.Sprintf("%s-%x", s.program.flavour, key[:8]))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	data := filepath.Join(dir, dataName)
	if _, err := os.Stat(data); err == nil || !errors.Is(err, os.ErrNotExist) {
		return data, err
	}
	lock, err := awaitLock(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Stat(data); err == nil {
		return data, nil // another made it while we waited
	}
	return data, s.makeData(ctx, data, lock)
}

// awaitLock waits for the lock of a file that others hold for seconds at most.
func awaitLock(ctx context.Context, path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for tryLock(file) != nil {
		select {
		case <-ctx.Done():
			file.Close()
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
	return file, nil
}

// clearTemp makes the folder for temporary files that commonFlags names, empty.
func clearTemp(data string) error {
	temp := tempFor(data)
	return errors.Join(os.RemoveAll(temp), os.Mkdir(temp, 0o700))
}

// tempFor is where the server of data has its temporary files. It needs a folder of its own: MariaDB, when it
// starts, removes all that looks like a temporary table, and in /tmp these are other servers' as well.
func tempFor(data string) string { return filepath.Join(filepath.Dir(data), "tmp") }

func (s *Server) makeData(ctx context.Context, data string, lock *os.File) error {
	if err := clearTemp(data); err != nil {
		return err
	}
	return whole(data, func(unfinished string) error {
		if err := os.Mkdir(unfinished, 0o700); err != nil {
			return err
		}
		if err := s.runInitialiser(ctx, unfinished, lock); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(unfinished, flavourName), []byte(s.program.flavour+"\n"), 0o600)
	})
}

// whole has fill make a folder under another name and gives it the name dir only when it is complete.
func whole(dir string, fill func(unfinished string) error) error {
	unfinished := dir + ".unfinished"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	if err := fill(unfinished); err != nil {
		return errors.Join(err, os.RemoveAll(unfinished))
	}
	return os.Rename(unfinished, dir)
}

// runInitialiser has the server's own means write its system tables into the empty folder data, with a user
// root that needs no password and can log in from this machine only.
func (s *Server) runInitialiser(ctx context.Context, data string, lock *os.File) error {
	if s.program.flavour == MySQL {
		name, folder := containerName(data), filepath.Dir(data)
		if err := s.program.end(name); err != nil { // of an owner that was killed
			return err
		}
		path, args := s.program.command(name, []string{folder}, append(s.commonFlags(data), "--initialize-insecure"))
		err := initialiser(ctx, lock, nil, path, args...)
		if err != nil {
			err = errors.Join(err, s.program.end(name))
		}
		return err
	}
	if script := installScript(s.program.path); script != "" {
		return initialiser(ctx, lock, nil, script, append(s.commonFlags(data),
			"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")...)
	}
	return s.bootstrap(ctx, data, lock)
}

// installScript returns MariaDB's own script that belongs to the program at path, empty if there is none.
func installScript(path string) string {
	for _, folder := range append([]string{filepath.Dir(path), filepath.Join(filepath.Dir(path), "..", "bin")}, searchPath()...) {
		for _, name := range []string{"mariadb-install-db", "mysql_install_db"} {
			script := filepath.Join(folder, name)
			if info, err := os.Stat(script); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
				return script
			}
		}
	}
	return ""
}

// bootstrap does without the script: the server reads the statements that make its system tables from its
// shared folder. It leaves out the help texts and the sys schema, which nobody asks for here.
func (s *Server) bootstrap(ctx context.Context, data string, lock *os.File) error {
	share, prefix, err := shareDir(s.program.path)
	if err != nil {
		return err
	}
	var sql bytes.Buffer
	sql.WriteString("CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n")
	for _, name := range []string{"system_tables", "performance_tables", "system_tables_data"} {
		text, err := os.ReadFile(filepath.Join(share, prefix+name+".sql"))
		if err != nil {
			return err
		}
		sql.Write(text)
		sql.WriteByte('\n')
	}
	flags := append(s.commonFlags(data), "--bootstrap", "--skip-name-resolve", "--lc-messages-dir="+share,
		"--max-allowed-packet=8M", "--net-buffer-length=16K", "--enforce-storage-engine=")
	return initialiser(ctx, lock, &sql, s.program.path, flags...)
}

// shareDir finds MariaDB's SQL files, whose names begin with mysql_ or, in newer versions, mariadb_.
func shareDir(path string) (dir, prefix string, err error) {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	base := filepath.Dir(filepath.Dir(path))
	for _, dir := range []string{
		filepath.Join(base, "share", "mariadb"), filepath.Join(base, "share", "mysql"), filepath.Join(base, "share"),
		"/usr/share/mariadb", "/usr/share/mysql", "/usr/local/share/mariadb", "/usr/local/share/mysql",
	} {
		for _, prefix := range []string{"mariadb_", "mysql_"} {
			if _, err := os.Stat(filepath.Join(dir, prefix+"system_tables.sql")); err == nil {
				return dir, prefix, nil
			}
		}
	}
	return "", "", fmt.Errorf("neither mariadb-install-db nor the SQL files of %s were found", path)
}

// initialiser runs one command to its end. It inherits the lock, so that nobody begins again beside one
// whose owner was killed.
func initialiser(ctx context.Context, lock *os.File, input *bytes.Buffer, path string, args ...string) error {
	cmd := exec.CommandContext(ctx, path, args...)
	if input != nil {
		cmd.Stdin = input
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.ExtraFiles = []*os.File{lock}
	// A script's own children are to end with it, or they would go on writing where we clean up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w\n%s", strings.Join(append([]string{path}, args...), " "), err, excerpt(out.Bytes()))
	}
	return nil
}

// excerpt is the begin and the end of what an initialiser says: MariaDB's follows its errors by a page of advice.
func excerpt(text []byte) string {
	const first, last = 10, 4
	lines := strings.Split(string(bytes.TrimSpace(text)), "\n")
	if len(lines) > first+last {
		lines = slices.Concat(lines[:first], []string{"..."}, lines[len(lines)-last:])
	}
	return strings.Join(lines, "\n")
}
