package web_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/redrive-mq/redrive/web"
)

func TestProducersAndChannelsAreCreatedAndUpdatedConditionally(t *testing.T) {
	t.Parallel()
	a := newBareAPI(t)
	for _, path := range []string{"/producer/x", "/channel/x"} {
		a.get(path).want(404)
		made := a.put(path, "")
		v := made.json()
		if v["ID"] != "x" || v["Name"] != "x" || len(v["Token"].(string)) < 20 {
			t.Errorf("%s: left out were a random token and the id as name, got %v", path, v)
		}
		modified := made.Header.Get("Last-Modified")
		if got := a.get(path).want(200); got.json()["Token"] != "" || got.Header.Get("Last-Modified") != modified {
			t.Errorf("%s: GET shows %v with %q", path, got.json(), got.Header.Get("Last-Modified"))
		}
		a.call("PUT", path, "", asAdmin, asForm).want(400)
		a.call("PUT", path, "", asAdmin, asForm, "If-Unmodified-Since: yesterday").want(412)
		a.call("PUT", path, "", asAdmin, asForm, "If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT").want(412)
		updated := a.put(path, form("token", "secret", "name", "Ärger & Söhne"), "If-Unmodified-Since: "+modified)
		if v := updated.json(); v["Token"] != "secret" || v["Name"] != "Ärger & Söhne" {
			t.Errorf("%s: the update answers %v", path, v)
		}
		if updated.Header.Get("Last-Modified") == modified {
			t.Errorf("%s: two versions have the same Last-Modified", path)
		}
		a.call("PUT", path, "", asAdmin, asForm, "If-Unmodified-Since: "+modified).want(412)
	}
	want := map[string]any{
		"ConsumersURL": "/channel/x/consumers", "MessagesURL": "/channel/x/messages", "BroadcastURL": "/channel/x/broadcast",
		"MessagesStatusURL": "/channel/x/messages-status", "ScheduledMessagesURL": "/channel/x/scheduled-messages",
	}
	got := a.get("/channel/x").want(200).json()
	for name, url := range want {
		if got[name] != url {
			t.Errorf("%s is %v, want %v", name, got[name], url)
		}
	}
}

func TestChannelHistory(t *testing.T) {
	t.Parallel()
	a := newBareAPI(t)
	made := a.put("/channel/x", "")
	if _, there := made.json()["History"]; there {
		t.Errorf("a client that knows nothing of it is shown %s", made.body)
	}
	at := "If-Unmodified-Since: " + made.Header.Get("Last-Modified")
	a.call("PUT", "/channel/x", form("history", "some"), asAdmin, asForm, at).want(400)
	changed := a.put("/channel/x", form("history", "failures"), at)
	for _, got := range []any{changed.json()["History"], a.get("/channel/x").json()["History"]} {
		if got != "failures" {
			t.Errorf("history is %v", got)
		}
	}
	kept := a.put("/channel/x", "", "If-Unmodified-Since: "+changed.Header.Get("Last-Modified"))
	if kept.json()["History"] != "failures" {
		t.Errorf("left out, it becomes %s", kept.body)
	}
}

func TestConsumerForms(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for _, tc := range []struct {
		form string
		want int
	}{
		{"", 400},
		{form("callbackUrl", "/relative"), 400},
		{form("callbackUrl", "consumer.example/x"), 400},
		{form("callbackUrl", "ftp://consumer.example/"), 400},
		{form("callbackUrl", "http:consumer.example"), 400},
		{form("callbackUrl", "http://"), 400},
		{form("callbackUrl", "http://consumer.example:0/"), 400},
		{form("callbackUrl", "http://consumer.example:70000/"), 400},
		{form("callbackUrl", "http://consumer.example/a b"), 400},
		{form("callbackUrl", "http://consumer.example/\x01"), 400},
		{form("callbackUrl", "http://consumer.example/"+strings.Repeat("x", 2048)), 400},
		{form("callbackUrl", "http://localhost:8080/"), 400},
		{form("callbackUrl", "http://LOCALHOST./"), 400},
		{form("callbackUrl", "http://127.0.0.1/"), 400},
		{form("callbackUrl", "http://127.1/"), 400},
		{form("callbackUrl", "http://2130706433/"), 400},
		{form("callbackUrl", "http://0x7f000001/"), 400},
		{form("callbackUrl", "http://[::1]/"), 400},
		{form("callbackUrl", "http://[::ffff:10.0.0.1]/"), 400},
		{form("callbackUrl", "http://[fe80::1%25eth0]/"), 400},
		{form("callbackUrl", "http://169.254.169.254/latest/meta-data"), 400},
		{form("callbackUrl", "http://10.1.2.3/"), 400},
		{form("callbackUrl", "http://192.168.0.1/"), 400},
		{form("callbackUrl", "http://0.0.0.0/"), 400},
		{form("callbackUrl", "https://consumer.example/", "type", "neither"), 400},
		{form("callbackUrl", "https://consumer.example/", "token", "a\nb"), 400},
		{form("callbackUrl", "https://consumer.example/", "token", " a"), 400},
		{form("callbackUrl", "https://consumer.example/", "token", strings.Repeat("x", 256)), 400},
		{form("callbackUrl", "https://consumer.example/", "name", strings.Repeat("x", 256)), 400},
		{form("callbackUrl", "https://consumer.example/", "name", "\xff"), 400},
		{"callbackUrl=%zz", 400},
		{"callbackUrl=\xff", 400},
		{form("callbackUrl", "https://user:pw@consumer.example:8443/hook?x=1#f"), 200},
		{form("callbackUrl", "http://203.0.113.7.nip.example/", "type", ""), 200},
		{form("callbackUrl", "http://localhost/", "type", "pull"), 200},
		{form("callbackUrl", "https://consumer.example/", "type", "pull"), 200},
	} {
		t.Run(fmt.Sprint(tc.want, " ", tc.form[:min(len(tc.form), 80)]), func(t *testing.T) {
			path := "/channel/c/consumer/" + url.PathEscape("k "+tc.form[:min(len(tc.form), 60)]+" k")
			if tc.form == "callbackUrl=\xff" {
				path = "/channel/c/consumer/k"
			}
			a.call("PUT", path, tc.form, asAdmin, asForm).want(tc.want)
		})
	}
	a.call("PUT", "/channel/nowhere/consumer/k", "callbackUrl=https%3A%2F%2Fconsumer.example", asAdmin, asForm).want(404)
	a.call("PUT", "/channel/c/consumer/k", "callbackUrl=https%3A%2F%2Fconsumer.example", asAdmin).want(415)
	a.call("PUT", "/channel/c/consumer/k", "{}", asAdmin, "Content-Type: application/json").want(415)
	a.call("PUT", "/channel/c/consumer/k", "callbackUrl=https%3A%2F%2Fconsumer.example", asAdmin, asForm+"; charset=UTF-8").want(200)

	v := a.get("/channel/c/consumer/pull").want(200).json()
	if v["Type"] != "pull" || v["Token"] != "" || v["DeadLetterQueueURL"] != "/channel/c/consumer/pull/dlq" || v["CallbackURL"] != "https://consumer.example/pull" {
		t.Errorf("GET shows %v", v)
	}
	a.get("/channel/c/consumer/nobody").want(404)
	a.get("/channel/nowhere/consumer/pull").want(404)
}

func TestPrivateDestinationsCanBeAllowed(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(o *web.Options) { o.AllowPrivateDestinations = true })
	a.put("/channel/c/consumer/local", form("callbackUrl", "http://127.0.0.1:9/"))
}

func TestConsumerIsDeletedConditionally(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	const path = "/channel/c/consumer/push"
	modified := a.get(path).Header.Get("Last-Modified")
	a.call("DELETE", path, "", asAdmin).want(400)
	a.call("DELETE", path, "", asAdmin, "If-Unmodified-Since: soon").want(412)
	a.call("DELETE", path, "", asAdmin, "If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT").want(412)
	a.call("DELETE", path, "", "If-Unmodified-Since: "+modified).want(401)
	a.call("DELETE", path, "", asAdmin, "If-Unmodified-Since: "+modified).want(204)
	a.call("DELETE", path, "", asAdmin, "If-Unmodified-Since: "+modified).want(404)
	a.call("DELETE", "/channel/nowhere/consumer/push", "", asAdmin, "If-Unmodified-Since: "+modified).want(404)
	a.get(path).want(404)
}

func TestIDsInPaths(t *testing.T) {
	t.Parallel()
	a := newBareAPI(t)
	for _, id := range []string{"a/b", "a b", "ä", "%2F", "a?b#c", "..", ".", "a+b", "a;b&c=d", strings.Repeat("x", 255), "😀"} {
		path := "/channel/" + strings.ReplaceAll(url.PathEscape(id), ".", "%2E")
		if got := a.put(path, "").json(); got["ID"] != id {
			t.Errorf("%q came back as %q", id, got["ID"])
		}
		got := a.get(path).want(200).json()
		if got["ID"] != id {
			t.Errorf("%q came back as %q", id, got["ID"])
		}
		a.get(got["ConsumersURL"].(string)).want(200) // links to what has such an id work
	}
	a = newAPI(t)
	a.send("a") // which the database takes for "a " as well
	for _, id := range []string{"%20a", "a%20", "%C2%A0a", "a%00b", "a%0Ab", "a%7Fb", "a%C2%85b", "%FF", "%20", strings.Repeat("x", 256)} {
		a.call("PUT", "/channel/"+id, "", asAdmin, asForm).want(400)
		a.call("DELETE", "/channel/c/consumer/"+id, "", asAdmin).want(400)
		a.call("POST", "/channel/"+id+"/broadcast", "").want(400)
		a.get("/channel/" + id).want(404)
		a.get("/producer/" + id).want(404)
		a.get("/channel/" + id + "/messages").want(404)
		a.get("/channel/c/message/" + id).want(404)
		a.get("/channel/c/scheduled-message/" + id).want(404)
		a.get("/channel/c/consumer/" + id).want(404)
		a.get("/channel/c/consumer/" + id + "/dlq").want(404)
		a.get("/channel/c/consumer/"+id+"/queued-jobs", as("pull")...).want(401)
		a.get("/channel/c/consumer/" + id + "/queued-jobs").want(403)
		a.get("/channel/c/consumer/pull/job/"+id, as("pull")...).want(404)
	}
}

func TestAdminToken(t *testing.T) {
	t.Parallel()
	a := newBareAPI(t)
	for _, header := range []string{"X-Nothing: x", "Authorization: Bearer wrong", "Authorization: Bearer ", "Authorization: Basic " + adminToken, "Authorization: " + adminToken} {
		got := a.call("PUT", "/producer/x", "", asForm, header).want(401)
		if !strings.HasPrefix(got.Header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: WWW-Authenticate is %q", header, got.Header.Get("WWW-Authenticate"))
		}
	}
	a.call("PUT", "/producer/x", "", asForm, "Authorization: bearer another").want(200)

	open := newBareAPI(t, func(o *web.Options) { o.AdminTokens, o.AdminOpen = nil, true })
	open.call("PUT", "/producer/x", "", asForm).want(200)

	if _, err := web.New(web.Options{Store: a.store, Broadcaster: a.broker, Kicker: a.broker, DeadCounter: a.broker}); err == nil {
		t.Error("a server without an admin token that is not open was made")
	}
	if _, err := web.New(web.Options{AdminOpen: true}); err == nil {
		t.Error("a server without a store was made")
	}
}

// Walks a list as clients do: by next until a page is empty, and back by previous.
func TestListsArePaged(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	const n = 60
	var want []string
	for i := range n {
		a.put(fmt.Sprintf("/producer/p%02d", i), "")
		a.send(fmt.Sprintf("m%02d", i))
		a.kill(a.jobOf(fmt.Sprintf("m%02d", i), "push"))
		want = append([]string{fmt.Sprintf("p%02d", i)}, want...)
	}
	walk := func(first string, entries func(answer) ([]string, map[string]string)) (all []string, sizes []int) {
		t.Helper()
		var back string
		for path := first; ; {
			result, pages := entries(a.get(path).want(200))
			sizes = append(sizes, len(result))
			if len(result) == 0 {
				if len(pages) != 0 {
					t.Errorf("%s: an empty page links to %v", first, pages)
				}
				break
			}
			all = append(all, result...)
			path, back = pages["next"], pages["previous"]
			if !strings.Contains(path, "kept=1") {
				t.Fatalf("%s: the link %q lost a parameter", first, path)
			}
		}
		result, _ := entries(a.get(back).want(200))
		if len(result) != 25 || result[24] != all[49] {
			t.Errorf("%s: back from the third page are %d entries ending with %q, want 25 ending with %q", first, len(result), result[len(result)-1], all[49])
		}
		return all, sizes
	}
	listed := func(r answer) ([]string, map[string]string) { return r.list() }
	dead := func(r answer) ([]string, map[string]string) {
		var urls []string
		v := r.json()
		for _, j := range v["DeadJobs"].([]any) {
			urls = append(urls, j.(map[string]any)["MessageURL"].(string))
		}
		pages := map[string]string{}
		for k, u := range v["Pages"].(map[string]any) {
			pages[k] = u.(string)
		}
		return urls, pages
	}
	for _, tc := range []struct {
		path, prefix string
		entries      func(answer) ([]string, map[string]string)
	}{
		{"/producers?kept=1", "/producer/p", listed},
		{"/channel/c/messages?kept=1&status=102&status=101", "/channel/c/message/m", listed},
		{"/channel/c/consumer/push/dlq?kept=1", "/channel/c/message/m", dead},
	} {
		all, sizes := walk(tc.path, tc.entries)
		if tc.path == "/producers?kept=1" {
			if all[len(all)-1] != "/producer/p" {
				t.Errorf("the oldest producer is %q", all[len(all)-1])
			}
			all = all[:n]
		} else if fmt.Sprint(sizes) != "[25 25 10 0]" {
			t.Errorf("%s: the pages have %v entries", tc.path, sizes)
		}
		for i, got := range all {
			if wanted := tc.prefix + want[i][1:]; got != wanted {
				t.Fatalf("%s: entry %d is %q, want %q", tc.path, i, got, wanted)
			}
		}
	}
	// The first page's previous is where newer entries come up.
	_, pages := a.get("/channels").want(200).list()
	if result, _ := a.get(pages["previous"]).want(200).list(); len(result) != 0 {
		t.Errorf("there is something newer than the newest: %v", result)
	}
	a.put("/channel/newer", "")
	if result, _ := a.get(pages["previous"]).want(200).list(); len(result) != 1 || result[0] != "/channel/newer" {
		t.Errorf("newer than the newest is now %v", result)
	}
	if result, _ := a.get("/channel/c/consumers").want(200).list(); len(result) != 2 || result[0] != "/channel/c/consumer/pull" {
		t.Errorf("the consumers are %v", result)
	}
	a.get("/channel/nowhere/consumers").want(404)
	next := strings.TrimPrefix(pages["next"], "/channels?next=")
	for _, query := range []string{"next=x", "previous=%21", "next=" + next + "A", "next=" + next + "&previous=" + next, "next=" + next + "&next=" + next, "next=%zz", "next=" + next + "%3D"} {
		a.get("/channels?" + query).want(400)
		a.get("/channel/c/consumers?" + query).want(400)
		a.get("/producers?" + query).want(400)
	}
	a.get("/channel/c/messages?next=" + next).want(400) // of another list
	a.get("/channel/c/scheduled-messages?next=" + next).want(400)
	a.get("/channel/c/consumer/push/dlq?next=" + next).want(400)
	a.get("/channels?next=").want(200)
}
