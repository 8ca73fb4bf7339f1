package web

import (
	"net/http"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gorilla/mux"
)

// maxID bounds the ids that clients choose, and names and tokens, in bytes.
const maxID = 255

// CheckText says what is wrong with an id, a name or a token (1 to 255 bytes of UTF-8 without control characters and
// without white space at either end), or nothing. what names it in the error.
func CheckText(what, text string) error {
	switch {
	case text == "":
		return badRequest(what + " is empty")
	case len(text) > maxID:
		return badRequest(what + " is longer than 255 bytes")
	case !utf8.ValidString(text):
		return badRequest(what + " is not valid UTF-8")
	case strings.ContainsFunc(text, unicode.IsControl):
		return badRequest(what + " has a control character")
	case strings.TrimSpace(text) != text:
		return badRequest(what + " begins or ends with white space")
	}
	return nil
}

// pathID reads an id of the request's path, which is matched in its encoded form. One that nothing can have is a 400,
// but to who only reads it is one like any other that nothing has: it then comes back empty, as no id is.
func pathID(r *http.Request, name string) (string, error) {
	id, err := url.PathUnescape(mux.Vars(r)[name])
	if err != nil {
		err = badRequest(name + " is not percent-encoded correctly")
	} else {
		err = CheckText(name, id)
	}
	if err != nil && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		return "", nil
	}
	return id, err
}

// segment makes one segment of a path of an id. The ids "." and ".." are encoded as well: clients and proxies take
// them for steps otherwise.
func segment(id string) string {
	if id == "." || id == ".." {
		return strings.ReplaceAll(id, ".", "%2E")
	}
	return url.PathEscape(id)
}

func producerURL(producer string) string { return "/producer/" + segment(producer) }

func channelURL(channel string) string { return "/channel/" + segment(channel) }

func consumerURL(channel, consumer string) string {
	return channelURL(channel) + "/consumer/" + segment(consumer)
}

func messageURL(channel, message string) string {
	return channelURL(channel) + "/message/" + segment(message)
}

func scheduledURL(channel, message string) string {
	return channelURL(channel) + "/scheduled-message/" + segment(message)
}

func requeueURL(channel, consumer, job string) string {
	return consumerURL(channel, consumer) + "/job/" + segment(job) + "/requeue-dead-job"
}
