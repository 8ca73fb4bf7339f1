//go:build unix

package privatedb

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// maxSocketPath is what fits into a socket's address everywhere: Linux takes 107 bytes, macOS 103.
const maxSocketPath = 100

// socketPath returns where the server of dir listens, the same at every start: in dir, or, where that
// path is too long or its file system has no sockets, in a short folder of our own for temporary files. What an
// earlier server left there is removed: the caller holds the lock of dir.
//
// There is no fall-back to a port: the server asks for no password, so any user of the machine could log in.
func socketPath(dir string) (string, error) {
	inside := filepath.Join(dir, "sock")
	err := prepareSocket(inside)
	if err == nil {
		return inside, nil
	}
	id := fmt.Sprintf("redrive-%d-%x", os.Geteuid(), sha256.Sum256([]byte(dir)))[:32]
	for _, temp := range []string{os.TempDir(), "/tmp"} {
		short := filepath.Join(temp, id)
		if shortErr := privateDir(short); shortErr != nil {
			err = errors.Join(err, shortErr)
			continue
		}
		path := filepath.Join(short, "s")
		shortErr := prepareSocket(path)
		if shortErr == nil {
			return path, nil
		}
		err = errors.Join(err, shortErr)
	}
	return "", fmt.Errorf("private database in %s: no place for its socket: %w", dir, err)
}

// prepareSocket removes a dead socket from path and tries whether one can be made there.
func prepareSocket(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("%s is longer than the %d bytes of a socket's address", path, maxSocketPath)
	}
	for _, left := range socketFiles(path) {
		if err := os.Remove(left); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	probe, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	return probe.Close() // removes it
}

// privateDir makes a folder that only this user can enter, in a place where others may write: one that is
// already there is used only if it is just that.
func privateDir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(owner.Uid) != os.Geteuid() || info.Mode().Perm() != 0o700 {
		return fmt.Errorf("%s is not a folder of this user alone", path)
	}
	return nil
}

// socketFiles are what a server makes for its socket: MySQL keeps its process id in the second, and one that
// was killed leaves both.
func socketFiles(path string) []string { return []string{path, path + ".lock"} }

// removeSocket takes back what socketPath made for the server of dir.
func removeSocket(dir, path string) {
	for _, left := range socketFiles(path) {
		_ = os.Remove(left)
	}
	if short := filepath.Dir(path); short != dir {
		_ = os.Remove(short)
	}
}
