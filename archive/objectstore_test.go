package archive

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/redrive-mq/redrive/storage"
)

// objectStore answers the one request of the S3 protocol that archiving makes, or refuses it.
type objectStore struct {
	mu      sync.Mutex
	refuse  bool
	objects map[string][]byte // by path
}

func (o *objectStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err != nil || r.Method != http.MethodPut || r.Header.Get("If-None-Match") != "*":
		http.Error(w, "unexpected request", http.StatusNotImplemented)
	case o.refuse:
		http.Error(w, "<Error><Code>AccessDenied</Code></Error>", http.StatusForbidden)
	default:
		o.objects[r.URL.Path] = body
	}
}

// The S3 half, as far as it goes without a bucket: the requests, the folder in the URL, and a refusal.
func TestS3(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.message(3, 31*day, storage.Delivered)
	server := &objectStore{refuse: true, objects: map[string][]byte{}}
	endpoint := httptest.NewServer(server)
	defer endpoint.Close()
	a := w.archive(func(o *Options) {
		o.Destination = "s3://bucket/some/folder?region=eu-central-1&anonymous=true&use_path_style=true&disable_https=true&" +
			"request_checksum_calculation=when_required&endpoint=" + endpoint.URL
	})
	if err := a.prune(t.Context()); err == nil {
		t.Fatal("the refusal is no error")
	}
	w.wantLeft(ids)
	server.refuse = false
	w.check(a.prune(t.Context()))
	w.wantLeft()
	w.wantArchived(server.objects, ids)
	for path := range server.objects {
		if !strings.HasPrefix(path, "/bucket/some/folder/node-1_") {
			t.Errorf("object %s", path)
		}
	}
}
