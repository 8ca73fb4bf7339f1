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
	lines  []archived
}

// archived is a message whose line is in a file.
type archived struct {
	key  storage.ID
	jobs int
}

func (r *run) all(ctx context.Context) error {
	if err := r.deleteOwed(ctx); err != nil {
		return err
	}
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
	r.file.lines = append(r.file.lines, archived{m.Key, len(m.Jobs)})
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
	r.a.owed = append(r.a.owed, f.lines...)
	return r.deleteOwed(ctx)
}

// deleteOwed deletes messages that are in files which are durable, some in a transaction. After an error the next run
// begins with those that are left, so that they are not archived twice; only a crash between file and deletion does that.
func (r *run) deleteOwed(ctx context.Context) error {
	for len(r.a.owed) > 0 {
		var msgs []storage.PrunedMessage
		jobs := 0
		for _, m := range r.a.owed {
			if jobs += m.jobs; len(msgs) == deleteChunk || jobs > deleteJobs && len(msgs) > 0 {
				break
			}
			msg := storage.PrunedMessage{}
			msg.Key = m.key
			msgs = append(msgs, msg)
		}
		// Any shard of the counters will do; the key's last byte is its own counter's.
		if err := r.a.o.Store.Prune(ctx, msgs[0].Key[len(msgs[0].Key)-1], msgs); err != nil {
			return fmt.Errorf("delete archived messages (the next run begins with them): %w", err)
		}
		r.a.owed = r.a.owed[len(msgs):]
		r.messages += len(msgs)
		r.a.pruned.Add(float64(len(msgs)))
	}
	r.a.owed = nil
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
