package archive

import (
	"context"
	"fmt"
	"time"

	"gocloud.dev/blob"

	"github.com/redrive-mq/redrive/storage"
)

// prune is one run: from the oldest message to the youngest that may go.
func (a *Archive) prune(ctx context.Context) error {
	start := time.Now()
	run := run{a: a}
	defer run.abandon()
	err := run.all(ctx)
	if run.messages > 0 {
		a.log.InfoContext(ctx, "messages archived", "messages", run.messages, "files", run.files, "bytes", run.bytes,
			"took", time.Since(start).Round(time.Millisecond))
	}
	return err
}

// run writes files and deletes what is in them.
type run struct {
	a    *Archive
	file *file // nil: none is open

	messages, files int
	bytes           int64
}

// file is an archive file that is being written, with the messages whose lines are in it.
type file struct {
	name   string
	w      *blob.Writer
	cancel context.CancelFunc // before Close it makes the file never be
	size   int64
	keys   []storage.ID
}

func (r *run) all(ctx context.Context) error {
	age := time.Duration(r.a.o.RetentionDays) * 24 * time.Hour
	var after storage.ID
	for {
		page, err := r.a.o.Store.Prunable(ctx, age, after, pageSize)
		if err != nil {
			return fmt.Errorf("find messages to archive: %w", err)
		}
		if len(page.Messages) > 0 {
			cat, err := r.a.o.Store.Catalog(ctx)
			if err != nil {
				return err
			}
			for i := range page.Messages {
				if err := r.write(ctx, cat, &page.Messages[i]); err != nil {
					return err
				}
			}
		}
		if !page.More {
			return r.finish(ctx)
		}
		after = page.Last
	}
}

func (r *run) write(ctx context.Context, cat *storage.Catalog, m *storage.PrunedMessage) error {
	line, err := newRecord(cat, m).line()
	if err != nil {
		return fmt.Errorf("archive message %s: %w", m.Key, err)
	}
	if r.file == nil {
		if err := r.open(ctx); err != nil {
			return err
		}
	}
	if _, err := r.file.w.Write(line); err != nil {
		return fmt.Errorf("write archive file %s: %w", r.file.name, err)
	}
	r.file.size += int64(len(line))
	r.file.keys = append(r.file.keys, m.Key)
	if r.file.size >= r.a.o.MaxFileBytes {
		return r.finish(ctx)
	}
	return nil
}

func (r *run) open(ctx context.Context) error {
	name := r.a.names.next()
	ctx, cancel := context.WithCancel(ctx)
	w, err := r.a.dest.bucket.NewWriter(ctx, name, &blob.WriterOptions{
		ContentType: "application/x-ndjson",
		IfNotExist:  true, // another node of the same name, at the same millisecond, must not lose its file
	})
	if err != nil {
		cancel()
		return fmt.Errorf("begin archive file %s: %w", name, err)
	}
	r.file = &file{name: name, w: w, cancel: cancel}
	return nil
}

// finish closes the open file, and when it is durable deletes the messages in it.
func (r *run) finish(ctx context.Context) error {
	f := r.file
	if f == nil {
		return nil
	}
	r.file = nil
	defer f.cancel()
	if err := f.w.Close(); err != nil {
		return fmt.Errorf("close archive file %s: %w", f.name, err)
	}
	if err := r.a.dest.settle(f.name); err != nil {
		return fmt.Errorf("make archive file %s durable: %w", f.name, err)
	}
	r.files++
	r.bytes += f.size
	r.a.bytes.Add(float64(f.size))
	for len(f.keys) > 0 {
		n := min(len(f.keys), deleteChunk)
		msgs := make([]storage.PrunedMessage, n)
		for i, key := range f.keys[:n] {
			msgs[i].Key = key
		}
		// Any shard of the counters will do; the key's last byte is its own counter's.
		if err := r.a.o.Store.Prune(ctx, f.keys[0][len(f.keys[0])-1], msgs); err != nil {
			return fmt.Errorf("delete archived messages (those left will be archived again): %w", err)
		}
		f.keys = f.keys[n:]
		r.messages += n
		r.a.pruned.Add(float64(n))
	}
	return nil
}

// abandon gives up a file that an error left open.
func (r *run) abandon() {
	if r.file == nil {
		return
	}
	r.file.cancel()
	_ = r.file.w.Close() // it was cancelled, so this discards what was written
	r.file = nil
}
