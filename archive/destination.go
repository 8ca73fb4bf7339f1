package archive

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
)

// destination is where files go.
type destination struct {
	bucket *blob.Bucket
	owned  bool
	folder string // of a local one; empty: an object store, whose writes are durable when they are closed
}

func openDestination(ctx context.Context, o Options) (destination, error) {
	if o.Bucket != nil {
		return destination{bucket: o.Bucket}, nil
	}
	scheme, _, isURL := strings.Cut(o.Destination, "://")
	if !isURL {
		return openFolder(o.Destination)
	}
	u, err := url.Parse(o.Destination)
	if err != nil {
		return destination{}, errors.New("archive: the destination is not a URL") // it may hold credentials
	}
	switch scheme {
	case "file":
		if u.Host != "" && u.Host != "localhost" || u.RawQuery != "" || u.Path == "" {
			return destination{}, errors.New("archive: a file URL must be of the form file:///folder")
		}
		return openFolder(filepath.FromSlash(u.Path))
	case "s3", "gs":
	default:
		return destination{}, fmt.Errorf("archive: the destination's scheme is %q, it must be file, s3 or gs, or a folder without a scheme", scheme)
	}
	prefix := strings.Trim(u.Path, "/")
	u.Path, u.RawPath = "", ""
	bucket, err := blob.OpenBucket(ctx, u.String())
	if err != nil {
		return destination{}, fmt.Errorf("archive: open the %s bucket %q: %w", scheme, u.Host, err)
	}
	if prefix != "" {
		bucket = blob.PrefixedBucket(bucket, prefix+"/")
	}
	return destination{bucket: bucket, owned: true}, nil
}

func openFolder(folder string) (destination, error) {
	abs, err := filepath.Abs(folder)
	if err != nil {
		return destination{}, fmt.Errorf("archive: %w", err)
	}
	bucket, err := fileblob.OpenBucket(abs, &fileblob.Options{
		CreateDir: true, DirFileMode: 0o750,
		NoTempDir: true, // a temporary file beside the target can be renamed to it, one elsewhere perhaps not
		Metadata:  fileblob.MetadataDontWrite,
	})
	if err != nil {
		return destination{}, fmt.Errorf("archive: open the folder %s: %w", abs, err)
	}
	return destination{bucket: bucket, owned: true, folder: abs}, nil
}

// settle makes a file that was closed outlive a loss of power.
func (d destination) settle(name string) error {
	if d.folder == "" {
		return nil
	}
	return errors.Join(syncPath(filepath.Join(d.folder, name)), syncPath(d.folder))
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d destination) close() error {
	if !d.owned {
		return nil
	}
	return d.bucket.Close()
}
