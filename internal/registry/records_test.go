package registry

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
)

const records = mirror + ":recast-history-prod"

// keep puts a record on the list that was written in that minute.
func keep(t *testing.T, c *Records, name string, minute int, content string, most int) {
	t.Helper()
	r := images.Record{Name: name, Labels: map[string]string{"result": "done"}, Written: time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC)}
	must.Do(t, c.Keep(t.Context(), records, r, []byte(content), most))
}

// contents lists what is on the list, in its order.
func contents(t *testing.T, c *Records) (all []string) {
	t.Helper()
	list := must.Get(c.List(t.Context(), records))(t)
	for _, r := range list {
		content, err := c.Read(t.Context(), records, r)
		if err != nil || int64(len(content)) != r.SizeBytes {
			t.Fatalf("%s: %d of %d bytes, %v", r.Name, len(content), r.SizeBytes, err)
		}
		all = append(all, fmt.Sprintf("%s %s %s %s", r.Name, content, r.Labels["result"], r.Written.Format("15:04")))
	}
	return all
}

func TestRecords(t *testing.T) {
	t.Parallel()
	s := direct{factoryapi.NewRegistry(record.New())}
	c := NewRecords(client(t, s))
	must.Equal(t, "of no list", []string(nil), contents(t, c))
	keep(t, c, "a", 1, "one", 2)
	replaced := must.Get(c.List(t.Context(), records))(t)[0]
	keep(t, c, "b", 2, "two", 2)
	keep(t, c, "a", 3, "one and more", 2)
	must.Equal(t, "a record that was written again", []string{"a one and more done 03:03", "b two done 03:02"}, contents(t, c))
	if content, err := c.Read(t.Context(), records, replaced); err == nil {
		t.Errorf("what it replaced is there still: %q", content)
	}
	keep(t, c, "c", 4, "three", 2)
	must.Equal(t, "more than two: the oldest goes", []string{"c three done 03:04", "a one and more done 03:03"}, contents(t, c))
	left := must.Get(client(t, s).Tags(t.Context(), mirror))(t)
	if !slices.Equal(left, []string{"recast-history-prod"}) {
		t.Errorf("it is more than one tag: %q", left)
	}
	if err := c.Keep(t.Context(), records, images.Record{Name: "d"}, make([]byte, maxRecord+1), 2); err == nil {
		t.Error("a record of any size is kept")
	}
}

// TestRecordsOfTwo: of two that write at once, neither loses its record.
func TestRecordsOfTwo(t *testing.T) {
	t.Parallel()
	s := direct{factoryapi.NewRegistry(record.New())}
	other, between := NewRecords(client(t, s)), 0
	c := NewRecords(client(t, quirk{s, func(r *http.Request) *http.Response {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/manifests/recast-history-prod") && between == 0 {
			between++
			keep(t, other, "theirs", 1, "b", 9)
		}
		return nil
	}}))
	keep(t, other, "old", 0, "o", 9)
	keep(t, c, "ours", 2, "a", 9) // writes a list that does not have theirs
	keep(t, other, "theirs", 3, "b", 9)
	must.Equal(t, "the list", []string{"theirs b done 03:03", "ours a done 03:02", "old o done 03:00"}, contents(t, c))
}

// TestRecordsAreGone: a registry that refuses a list with a part that someone has deleted gets the rest.
func TestRecordsAreGone(t *testing.T) {
	t.Parallel()
	s := direct{factoryapi.NewRegistry(record.New())}
	strict := quirk{s, func(r *http.Request) *http.Response {
		if r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, "/manifests/recast-history-prod") || r.GetBody == nil {
			return nil
		}
		body := must.Get(r.GetBody())(t)
		defer body.Close()
		for _, part := range strings.Split(string(must.Get(io.ReadAll(body))(t)), `"digest":"`)[1:] {
			digest, _, _ := strings.Cut(part, `"`)
			if _, err := remote.Head(must.Get(name.NewDigest(mirror+"@"+digest))(t), remote.WithTransport(s)); err != nil {
				return answers(http.StatusBadRequest) // MANIFEST_BLOB_UNKNOWN of distribution
			}
		}
		return nil
	}}
	c := NewRecords(client(t, strict))
	keep(t, c, "a", 1, "one", 9)
	list := must.Get(c.List(t.Context(), records))(t)
	keep(t, c, "b", 2, "two", 9)
	must.Do(t, client(t, s).Delete(t.Context(), mirror+"@"+list[0].Digest))
	keep(t, c, "c", 3, "three", 9)
	must.Equal(t, "the list", []string{"c three done 03:03", "b two done 03:02"}, contents(t, c))
}

// TestRecordsRefused: a registry that lets no one write, or has something else under the tag.
func TestRecordsRefused(t *testing.T) {
	t.Parallel()
	s := direct{factoryapi.NewRegistry(record.New())}
	denied := NewRecords(client(t, quirk{s, func(r *http.Request) *http.Response {
		if r.Method == http.MethodPost {
			return answers(http.StatusForbidden)
		}
		return nil
	}}))
	if err := denied.Keep(t.Context(), records, images.Record{Name: "a"}, []byte("x"), 9); !errors.Is(err, images.ErrDenied) {
		t.Errorf("denied: %v", err)
	}
	index, img := pushBuilt(t, s, "recast-history-prod", time.Unix(0, 0))
	c, shelf := NewRecords(client(t, s)), client(t, s)
	for _, digest := range []string{index.String(), img.String()} {
		must.Do(t, shelf.Tag(t.Context(), mirror+"@"+digest, records))
		_, err := c.List(t.Context(), records)
		for _, err := range []error{err, c.Keep(t.Context(), records, images.Record{Name: "a"}, []byte("x"), 9)} {
			must.Contain(t, "an image under that tag", fmt.Sprint(err), "is not a list of runs: it is left as it is")
		}
		if got, _, err := shelf.Head(t.Context(), records); got != digest || err != nil {
			t.Errorf("it was %s, and is %s, %v", digest, got, err)
		}
	}
}

// TestForAnyone: what answers without a login at a public address can be read by everyone.
func TestForAnyone(t *testing.T) {
	t.Parallel()
	type row struct {
		registry  string
		tags, tag *http.Response // the answers to who asks for all of them, and for one
		want      bool
		fails     bool
	}
	must.Each(t, map[string]row{
		"public":               {"192.0.2.7", nil, nil, true, false},
		"with a login":         {"192.0.2.7", nil, answers(http.StatusUnauthorized), false, false},
		"hidden":               {"192.0.2.7", nil, answers(http.StatusNotFound), false, false},
		"not there yet":        {"192.0.2.7", answers(http.StatusNotFound), nil, false, true},
		"it has no time":       {"192.0.2.7", nil, answers(http.StatusTooManyRequests), false, true},
		"out of order":         {"192.0.2.7", nil, answers(http.StatusBadRequest + 100), false, true},
		"of one's own network": {"10.1.2.3:5000", nil, nil, false, false},
		"of this machine":      {"127.0.0.1:5000", nil, nil, false, false},
		"IPv6 of one's own":    {"[fd00::1]:5000", nil, nil, false, false},
	}, func(t *testing.T, tc row) {
		s := direct{factoryapi.NewRegistry(record.New())}
		at := tc.registry + "/acme/talos:recast-history-prod"
		must.Do(t, NewRecords(client(t, s)).Keep(t.Context(), at, images.Record{Name: "a"}, []byte("x"), 9))
		c := NewRecords(client(t, quirk{s, func(r *http.Request) *http.Response {
			switch {
			case strings.HasSuffix(r.URL.Path, "/tags/list"):
				return tc.tags
			case strings.Contains(r.URL.Path, "/manifests/"):
				return tc.tag
			}
			return nil
		}}))
		if got, err := c.ForAnyone(t.Context(), at); got != tc.want || (err != nil) != tc.fails {
			t.Errorf("%t, %v", got, err)
		}
	})
}
