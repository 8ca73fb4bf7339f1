//go:build unix

package privatedb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// pidName is the file in Options.Dir with the process id of the server, or of the command that runs it in a container.
const pidName = "server.pid"

// ErrNoServer says that the machine has no server program, and how to get one.
var ErrNoServer = errors.New(`there is neither a mariadbd nor a mysqld on this machine for a private database. To get one:
  Debian, Ubuntu: apt-get install mariadb-server-core
  macOS: brew install mariadb
  Docker: docker run -d -p 127.0.0.1:3306:3306 -e MYSQL_ROOT_PASSWORD=secret -e MYSQL_DATABASE=redrive mysql:8.4, then REDRIVE_DATABASE_DSN='root:secret@tcp(127.0.0.1:3306)/redrive'`)

// usualPlaces are where packages put server programs, beside the folders of PATH: often not a user's sbin.
var usualPlaces = []string{
	"/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/usr/libexec", "/usr/local/libexec",
	"/opt/homebrew/bin", "/opt/homebrew/opt/mariadb/bin", "/opt/homebrew/opt/mysql/bin",
	"/usr/local/opt/mariadb/bin", "/usr/local/opt/mysql/bin", "/usr/local/mysql/bin", "/opt/local/lib/mariadb/bin",
}

// program is a server program on this machine, or one of an image.
type program struct {
	path    string // of the container engine's command where there is an image
	image   string // empty: a program of this machine
	flavour string
	version string // its answer to --version
}

// findProgram finds the server program for dir: of the flavour that its data was made by, which must be the
// one wanted, if one is wanted. Where this machine has none, it is one in a container, unless that is not wanted.
func (o Options) findProgram(ctx context.Context, folders []string) (program, error) {
	dir, wanted := o.Dir, o.Flavour
	made, err := os.ReadFile(filepath.Join(dir, dataName, flavourName))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return program{}, fmt.Errorf("private database: %w", err)
	}
	if used := strings.TrimSpace(string(made)); used != "" {
		if wanted != "" && wanted != used {
			return program{}, fmt.Errorf("the private database in %s was made by %s, not by %s", dir, used, wanted)
		}
		wanted = used
	}
	for _, p := range programs(ctx, folders) {
		if wanted == "" || wanted == p.flavour {
			return p, nil
		}
	}
	if !o.NoContainer && wanted != MariaDB {
		if p, err := containerProgram(ctx, folders, o.Log); !errors.Is(err, ErrNoServer) {
			return p, err
		}
	}
	if wanted != "" {
		return program{}, fmt.Errorf("no server of flavour %s for the private database in %s: %w", wanted, dir, ErrNoServer)
	}
	return program{}, ErrNoServer
}

func searchPath() []string {
	return append(filepath.SplitList(os.Getenv("PATH")), usualPlaces...)
}

// programs returns the first server program of each flavour in the given folders, MariaDB first. A name
// says little: MariaDB installs a mysqld too.
func programs(ctx context.Context, folders []string) []program {
	var found []program
	seen := map[string]bool{}
	for _, name := range []string{"mariadbd", "mysqld"} {
		for _, folder := range folders {
			if !filepath.IsAbs(folder) {
				continue // PATH may name the current folder: nothing in it is run
			}
			path := filepath.Join(folder, name)
			resolved, err := filepath.EvalSymlinks(path)
			if err != nil || seen[resolved] {
				continue
			}
			seen[resolved] = true
			p, err := identify(ctx, path)
			if err != nil || slices.ContainsFunc(found, func(f program) bool { return f.flavour == p.flavour }) {
				continue // not a program that runs here, or a second one
			}
			found = append(found, p)
		}
	}
	slices.SortStableFunc(found, func(a, b program) int { return strings.Compare(a.flavour, b.flavour) })
	return found
}

func identify(ctx context.Context, path string) (program, error) {
	out, err := exec.CommandContext(ctx, path, "--no-defaults", "--version").Output()
	if err != nil {
		return program{}, fmt.Errorf("%s --version: %w", path, err)
	}
	p := program{path: path, flavour: MySQL, version: strings.TrimSpace(string(out))}
	if strings.Contains(p.version, "MariaDB") {
		p.flavour = MariaDB
	}
	return p, nil
}

// flags are the server's, for its whole life.
func (s *Server) flags() []string {
	commit := "1" // on the disk
	if s.opts.Ephemeral {
		commit = "2" // in the operating system's hands
	}
	flags := append(s.commonFlags(filepath.Join(s.opts.Dir, dataName)),
		"--socket="+s.socket,
		"--pid-file="+s.program.pidFile(s.opts.Dir),
		"--skip-networking",
		"--skip-name-resolve",
		"--skip-log-bin",
		"--performance-schema=OFF", // 100 MB and more on MySQL for figures that nobody reads here
		"--character-set-server=utf8mb4",
		"--local-infile=OFF",
		"--innodb-flush-log-at-trx-commit="+commit,
		"--innodb-buffer-pool-size="+strconv.FormatInt(s.opts.BufferPoolBytes, 10),
		"--max-connections=500",
	)
	if s.program.flavour == MySQL {
		flags = append(flags, "--loose-mysqlx=OFF", "--secure-file-priv=NULL")
	}
	return append(flags, s.opts.Settings...)
}

// commonFlags are those of making the data and of serving it.
func (s *Server) commonFlags(data string) []string {
	flags := []string{"--no-defaults", "--datadir=" + data, "--tmpdir=" + tempFor(data)}
	if os.Geteuid() == 0 {
		flags = append(flags, "--user=root") // as root it refuses to start without; the data is root's
	}
	if s.opts.Ephemeral { // small files: they are copied for every test run
		if s.program.flavour == MariaDB {
			flags = append(flags, "--innodb-log-file-size=16M")
		} else {
			flags = append(flags, "--loose-innodb-redo-log-capacity=32M")
		}
	}
	return flags
}
