package web_test

import (
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/web"
)

// Every change by an admin leaves one line that says who changed what, and what was refused leaves none.
func TestAdminChangesAreLogged(t *testing.T) {
	t.Parallel()
	var log logBuffer
	a := newAPI(t, log.at(slog.LevelInfo))
	modified := a.get("/channel/c/consumer/push").want(200).Header.Get("Last-Modified")
	a.call("DELETE", "/channel/c/consumer/push", "", asAdmin, "If-Unmodified-Since: "+modified).want(204)
	a.put("/producer/a%2Fb", "token=p-token", "X-Request-ID: mine")
	a.call("PUT", "/producer/p", "token=p-token", asForm, asAdmin).want(400)
	a.call("PUT", "/producer/new", "", asForm, "Authorization: Bearer wrong-token").want(401)
	want := []string{
		`"caller":"second","method":"PUT","route":"/producer/{producerId}","requestId":"*","producerId":"p"`,
		`"caller":"second","method":"PUT","route":"/channel/{channelId}","requestId":"*","channelId":"c"`,
		`"caller":"second","method":"PUT","route":"/channel/{channelId}/consumer/{consumerId}","requestId":"*","channelId":"c","consumerId":"push"`,
		`"caller":"second","method":"PUT","route":"/channel/{channelId}/consumer/{consumerId}","requestId":"*","channelId":"c","consumerId":"pull"`,
		`"caller":"second","method":"DELETE","route":"/channel/{channelId}/consumer/{consumerId}","requestId":"*","channelId":"c","consumerId":"push"`,
		`"caller":"second","method":"PUT","route":"/producer/{producerId}","requestId":"mine","producerId":"a/b"`,
	}
	var got []string
	xid := regexp.MustCompile(`"requestId":"[0-9a-v]{20}"`)
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, `"level":"INFO"`) {
			_, rest, _ := strings.Cut(xid.ReplaceAllString(line, `"requestId":"*"`), `"changed by an admin",`)
			got = append(got, strings.TrimSuffix(strings.TrimSpace(rest), "}"))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if strings.Contains(log.String(), "-token") || strings.Contains(log.String(), adminToken) {
		t.Errorf("a secret is in the log:\n%s", log.String())
	}

	var open logBuffer
	newAPIOn(t, a.store, open.at(slog.LevelInfo), func(o *web.Options) { o.AdminOpen, o.AdminTokens = true, nil }).put("/producer/open", "")
	if !strings.Contains(open.String(), `"caller":"anonymous"`) {
		t.Errorf("where anybody may, the log has %s", open.String())
	}
}
