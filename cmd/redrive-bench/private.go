package main

import (
	"context"
	"path/filepath"

	"github.com/redrive-mq/redrive/storage/privatedb"
)

// startPrivate starts a database server for this run alone, with durable commits, and returns its DSN
// without a database and what ends it.
func startPrivate(ctx context.Context, dir string, bufferPool int64) (dsn string, stop func(), err error) {
	s, err := privatedb.Start(ctx, privatedb.Options{
		Dir:             filepath.Join(dir, "db"),
		BufferPoolBytes: bufferPool,
	})
	if err != nil {
		return "", nil, err
	}
	// Its data are deleted next: writing out millions of dirty pages for an orderly end would be a waste of minutes.
	return s.DSN(""), s.Kill, nil
}
