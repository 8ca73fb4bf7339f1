package app

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// serveOn answers with h on a loopback port until t ends. The server's send buffers are small.
func serveOn(t *testing.T, h http.Handler, within time.Duration) net.Addr {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(h, within, slog.New(slog.DiscardHandler))
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(4 << 10)
		}
		return ctx
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return listener.Addr()
}

func dial(t *testing.T, to net.Addr) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return conn
}

// A client that asks for much and reads nothing is cut off, also by what answers while the instance starts.
func TestReaderThatStalls(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	g := newGate(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, err := w.Write(make([]byte, 64<<20))
		ended <- err
	}))
	conn := dial(t, serveOn(t, g, 100*time.Millisecond))
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(4 << 10)
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the write ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the handler is still writing")
	}
}

// What takes longer than a write may, or reads an answer in more time than one write may take, is served nonetheless;
// so is a request that comes on a connection whose last write was long ago.
func TestSlowWorkIsAnswered(t *testing.T) {
	t.Parallel()
	const within = 500 * time.Millisecond
	const large = 8 << 20
	conn := dial(t, serveOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-time.After(within + 100*time.Millisecond) // the work
		switch r.URL.Path {
		case "/nothing":
			w.WriteHeader(http.StatusNoContent)
		case "/body":
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			_, _ = w.Write(body)
		default:
			_, _ = w.Write(make([]byte, large))
		}
	}), within))
	from := bufio.NewReader(conn)
	for _, c := range []struct {
		request string
		status  int
		size    int64
	}{
		{"GET /large HTTP/1.1\r\nHost: x\r\n\r\n", 200, large},
		{"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", 204, 0},
		{"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 200, 5},
		{"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", 204, 0},
	} {
		if _, err := io.WriteString(conn, c.request); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(from, nil)
		if err != nil {
			t.Fatalf("%s: %v", strings.Fields(c.request)[1], err)
		}
		got, err := io.Copy(io.Discard, paced{res.Body})
		if closeErr := res.Body.Close(); err != nil || closeErr != nil || res.StatusCode != c.status || got != c.size {
			t.Errorf("%s: %d with %d bytes, %v", strings.Fields(c.request)[1], res.StatusCode, got, err)
		}
	}
}

// paced reads no faster than a mebibyte in 100 ms.
type paced struct{ io.Reader }

func (p paced) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	if n > 0 {
		<-time.After(time.Duration(n) * 100 * time.Millisecond / (1 << 20))
	}
	return n, err
}
