package registry

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
)

func TestCopy(t *testing.T) {
	t.Parallel()
	must.Each(t, map[string]bool{"referrers API": true, "fallback tag": false}, func(t *testing.T, referrersAPI bool) {
		c := newCopier(t, ggcr.WithReferrersSupport(referrersAPI))
		sig := c.sign(t, c.source.Context())
		referrers := []string{c.refer(t).String(), c.refer(t).String()}
		must.Do(t, c.run(t))
		c.whole(t)
		must.Equal(t, "signature", sig, must.Get(remote.Head(c.mirror.Tag(c.signatureTag())))(t).Digest)
		must.Do(t, validate.Image(must.Get(remote.Image(c.mirror.Tag(c.signatureTag())))(t)))
		got := must.Get(c.referrers(t.Context(), c.mirror.Digest(c.source.DigestStr())))(t)
		slices.Sort(got)
		slices.Sort(referrers)
		must.Equal(t, "referrers", referrers, got)
		for _, r := range referrers {
			must.Do(t, validate.Image(must.Get(remote.Image(c.mirror.Digest(r)))(t)))
		}
		for _, r := range c.to.asked("PUT") {
			must.Hold(t, !strings.Contains(r, "/manifests/v"), "a tag was set: %s", r)
		}

		c.to.set(nil)
		must.Do(t, c.run(t))
		again := slices.Concat(c.to.asked("PUT"), c.to.asked("POST"), c.to.asked("PATCH"))
		must.Hold(t, len(again) == 0, "sent again: %q", again)
	})
}

// TestCopyWithoutAttachments: an image without signature and referrers is copied, too.
func TestCopyWithoutAttachments(t *testing.T) {
	t.Parallel()
	c := newCopier(t)
	must.Do(t, c.run(t))
	c.whole(t)
	if got := len(c.to.asked("PUT")); got != 2*3+3 { // blobs, manifests
		t.Errorf("%d PUTs", got)
	}
}

// TestCopyResumes interrupts a copy at each writing request, and copies again.
func TestCopyResumes(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make stories")
	}
	t.Parallel()
	must.Each(t, map[string]bool{"referrers API": true, "fallback tag": false}, func(t *testing.T, referrersAPI bool) {
		c := newCopier(t, ggcr.WithReferrersSupport(referrersAPI))
		sig, referrer := c.attach(t)
		must.Do(t, c.run(t))
		total := len(c.to.asked("PUT"))
		must.Be(t, total >= 2*3+3+5, "only %d writes", total)
		for at := 1; at <= total; at++ {
			c.into(t, newPlace(t, ggcr.WithReferrersSupport(referrersAPI)))
			writes := 0
			c.to.set(func(r *http.Request) int {
				if r.Method == http.MethodPut {
					writes++
				}
				if writes < at {
					return 0
				}
				return http.StatusInsufficientStorage // a status that is not retried
			})
			must.Be(t, c.run(t) != nil, "cut at write %d of %d: no error", at, total)
			c.to.let()
			err := c.run(t)
			must.Be(t, err == nil, "again after a cut at write %d of %d: %v", at, total, err)
			again := c.to.sentAgain()
			must.Hold(t, len(again) == 0, "cut at write %d of %d: sent again: %q", at, total, again)
			c.whole(t)
			got := must.Get(remote.Head(c.mirror.Tag(c.signatureTag())))(t).Digest.String()
			list := must.Get(c.referrers(t.Context(), c.mirror.Digest(c.source.DigestStr())))(t)
			diff := cmp.Diff([]string{sig.String(), referrer.String()}, append([]string{got}, list...))
			must.Hold(t, diff == "", "cut at write %d of %d: signature and referrers (-want +got):\n%s", at, total, diff)
		}
	})
}

func TestCopyNeverOverwritesASignature(t *testing.T) {
	t.Parallel()
	c := newCopier(t)
	c.sign(t, c.source.Context())
	theirs := c.sign(t, c.mirror)
	err := c.run(t)
	if fault.KindOf(err) != fault.Refused || !strings.Contains(err.Error(), theirs.String()) || len(fault.Hints(err)) != 1 {
		t.Errorf("err = %v, hints %q", err, fault.Hints(err))
	}
	must.Equal(t, "signature", theirs, must.Get(remote.Head(c.mirror.Tag(c.signatureTag())))(t).Digest)
}

// on is what a place answers to requests of a method, "" for any, for paths with that part.
func on(method, part string, status int) func(*http.Request) int {
	return func(r *http.Request) int {
		if (method == "" || r.Method == method) && strings.Contains(r.URL.Path, part) {
			return status
		}
		return 0
	}
}

// TestCopyPastDeniedSignatureTag: Artifactory's answer about a missing signature.
func TestCopyPastDeniedSignatureTag(t *testing.T) {
	t.Parallel()
	c := newCopier(t)
	sig := c.sign(t, c.source.Context())
	c.to.set(on(http.MethodHead, ".sig", http.StatusForbidden))
	must.Do(t, c.run(t))
	c.to.set(nil)
	must.Equal(t, "signature", sig, must.Get(remote.Head(c.mirror.Tag(c.signatureTag())))(t).Digest)
}

// TestCopyPastDeniedSignature: a registry that answers so for a missing tag (sigstore/cosign issue 2973) may be the one
// behind a factory, which expects that as well (image-factory, internal/frontend/http/registry.go).
func TestCopyPastDeniedSignature(t *testing.T) {
	t.Parallel()
	c := newCopier(t)
	c.from.set(on("", ".sig", http.StatusForbidden))
	must.Do(t, c.run(t))
}

func TestCopyExplains(t *testing.T) {
	t.Parallel()
	type row struct {
		target bool // the answer is of the registry that is copied to
		answer func(*http.Request) int
		denied bool
	}
	must.Each(t, map[string]row{
		"may not push":        {true, on(http.MethodPost, "/uploads/", http.StatusForbidden), true},
		"not logged in":       {true, on(http.MethodPost, "/uploads/", http.StatusUnauthorized), true},
		"may not pull":        {false, on(http.MethodGet, "/manifests/", http.StatusForbidden), true},
		"may not pull a blob": {false, on(http.MethodGet, "/blobs/", http.StatusForbidden), true},
		"a broken manifest":   {true, on(http.MethodPut, "/manifests/", http.StatusBadRequest), false},
		"referrers":           {false, on(http.MethodGet, "/referrers/", http.StatusForbidden), true},
		"a signature":         {false, on("", ".sig", http.StatusBadRequest), false},
	}, func(t *testing.T, tc row) {
		c := newCopier(t)
		blamed := c.from
		if tc.target {
			blamed = c.to
		}
		blamed.set(tc.answer)
		err := c.run(t)
		must.Be(t, err != nil && strings.HasPrefix(err.Error(), "registry "+blamed.host+": "),
			"err = %v, want it to begin with registry %s", err, blamed.host)
		must.Equal(t, "denied", tc.denied, errors.Is(err, images.ErrDenied))
		want := fmt.Sprintf("log in with `docker login %s`", blamed.host)
		got := strings.Join(fault.Hints(err), "; ")
		must.Hold(t, tc.denied == strings.Contains(got, want), "hints = %q", got)
	})
}

// TestCopyHints: what a registry rejects, with the remedy.
func TestCopyHints(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{
		http.StatusRequestEntityTooLarge: "client_max_body_size",
		http.StatusMethodNotAllowed:      "accepts no images",
	} {
		c := newCopier(t)
		c.to.set(on(http.MethodPost, "", status))
		must.Contain(t, fmt.Sprint(status), strings.Join(fault.Hints(c.run(t)), "; "), want)
	}
}

func TestHeadAndTag(t *testing.T) {
	t.Parallel()
	c := newCopier(t)
	must.Do(t, c.run(t))
	tag, copied := c.mirror.Tag("v1.13.9-abc").String(), c.mirror.Digest(c.source.DigestStr()).String()
	if got, found, err := c.Head(t.Context(), tag); err != nil || found {
		t.Errorf("before: %q %t %v", got, found, err)
	}
	must.Do(t, c.Tag(t.Context(), copied, tag))
	c.to.set(nil)
	if got, found, err := c.Head(t.Context(), tag); err != nil || !found || got != c.source.DigestStr() {
		t.Errorf("after: %q %t %v", got, found, err)
	}
	want := []string{"HEAD /v2/acme/talos/manifests/v1.13.9-abc"}
	must.Equal(t, "requests", want, slices.Concat(c.to.asked("HEAD"), c.to.asked("GET")))
	c.to.set(on("", "", http.StatusForbidden))
	if _, _, err := c.Head(t.Context(), tag); !errors.Is(err, images.ErrDenied) {
		t.Errorf("denied: %v", err)
	}
	c.to.set(nil)
	if err := c.Tag(t.Context(), c.mirror.Digest("sha256:"+strings.Repeat("0", 64)).String(), tag); err == nil {
		t.Error("a missing manifest was tagged")
	}
}

func TestCopyOfAnImage(t *testing.T) {
	t.Parallel()
	c := newCopier(t)
	img := must.Get(random.Image(1<<17, 9))(t) // more layers than there are jobs
	d := must.Get(img.Digest())(t)
	must.Do(t, remote.Write(c.source.Context().Tag("one"), img))
	var last, total int64
	err := c.Copy(t.Context(), c.source.Context().Digest(d.String()).String(), c.mirror.String(), func(done, of int64) { last, total = done, of })
	must.Do(t, err)
	// go-containerregistry does not report the last piece of a blob if it arrives with its end.
	if want := sizeOf(t, img); total != want || last > want || last < want/2 {
		t.Errorf("progress ended at %d of %d bytes, want %d", last, total, want)
	}
	must.Equal(t, "digest", d, must.Get(remote.Head(c.mirror.Digest(d.String())))(t).Digest)
}

func sizeOf(t *testing.T, img v1.Image) int64 {
	t.Helper()
	m := must.Get(img.Manifest())(t)
	size := must.Get(img.Size())(t) + m.Config.Size
	for _, l := range m.Layers {
		size += l.Size
	}
	return size
}

const mirror = host + "/acme/talos"

// pushBuilt pushes an index of one image with that build time, under a tag.
func pushBuilt(t *testing.T, to http.RoundTripper, tag string, at time.Time) (index, img v1.Hash) {
	t.Helper()
	one := must.Get(mutate.CreatedAt(must.Get(random.Image(64, 1))(t), v1.Time{Time: at}))(t)
	all := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: one})
	must.Do(t, remote.WriteIndex(must.Get(name.NewTag(mirror+":"+tag))(t), all, remote.WithTransport(to), remote.WithContext(t.Context())))
	return must.Get(all.Digest())(t), must.Get(one.Digest())(t)
}

func TestMirrorShelf(t *testing.T) {
	t.Parallel()
	s := direct{factoryapi.NewRegistry(record.New())}
	c := client(t, s)
	must.Equal(t, "of no repository", []string(nil), must.Get(c.Tags(t.Context(), mirror))(t))
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	index, img := pushBuilt(t, s, "v1.13.9-aaaaaaaaaaaa", at)
	pushBuilt(t, s, "v1.13.9-bbbbbbbbbbbb", time.Unix(0, 0))
	tags := must.Get(c.Tags(t.Context(), mirror))(t)
	must.Equal(t, "tags", []string{"v1.13.9-aaaaaaaaaaaa", "v1.13.9-bbbbbbbbbbbb"}, tags)
	got, found, err := c.Named(t.Context(), mirror+":v1.13.9-aaaaaaaaaaaa")
	diff := cmp.Diff(images.Named{Digest: index.String(), Lists: []string{img.String()}}, got)
	must.Hold(t, diff == "" && found && err == nil, "found %t, %v (-want +got):\n%s", found, err, diff)
	if _, found, err := c.Named(t.Context(), mirror+":v1.13.9-cccccccccccc"); found || err != nil {
		t.Errorf("no tag: found %t, %v", found, err)
	}
	for ref, want := range map[string]time.Time{
		mirror + "@" + index.String(): at, mirror + "@" + img.String(): at, mirror + ":v1.13.9-bbbbbbbbbbbb": {},
	} {
		if got, err := c.Built(t.Context(), ref); err != nil || !got.Equal(want) {
			t.Errorf("%s was built at %s, %v; want %s", ref, got, err, want)
		}
	}
	for range 2 { // the second time there is none
		must.Do(t, c.Delete(t.Context(), mirror+"@"+index.String()))
	}
	must.Equal(t, "tags after a deletion", []string{"v1.13.9-bbbbbbbbbbbb"}, must.Get(c.Tags(t.Context(), mirror))(t))
}

func TestDeleteRefuses(t *testing.T) {
	t.Parallel()
	d := mirror + "@sha256:" + strings.Repeat("a", 64)
	type row struct {
		status              int
		body                string
		undeletable, denied bool
		hint                string
	}
	must.Each(t, map[string]row{
		"turned off":  {405, `{"errors":[{"code":"UNSUPPORTED","message":"The operation is unsupported."}]}`, true, false, "REGISTRY_STORAGE_DELETE_ENABLED=true"},
		"unsupported": {400, `{"errors":[{"code":"UNSUPPORTED","message":"no"}]}`, true, false, "REGISTRY_STORAGE_DELETE_ENABLED=true"},
		"no route":    {405, ``, true, false, "where you manage the registry"},
		"denied":      {403, `{"errors":[{"code":"DENIED","message":"no"}]}`, false, true, "docker login " + host},
		"broken":      {400, `{"errors":[{"code":"UNKNOWN","message":"no"}]}`, false, false, ""},
	}, func(t *testing.T, tc row) {
		store := ggcr.New()
		c := client(t, direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodDelete {
				http.Error(w, tc.body, tc.status)
				return
			}
			store.ServeHTTP(w, r)
		})})
		err := c.Delete(t.Context(), d)
		if err == nil || errors.Is(err, images.ErrUndeletable) != tc.undeletable || errors.Is(err, images.ErrDenied) != tc.denied {
			t.Errorf("error = %v", err)
		}
		if got := strings.Join(fault.Hints(err), "; "); !strings.Contains(got, tc.hint) || got != "" && tc.hint == "" {
			t.Errorf("hint = %q, want it to hold %q", got, tc.hint)
		}
	})
	for host, want := range map[string]string{"ghcr.io": "gh api", name.DefaultRegistry: "Docker Hub", "r.acme": "REGISTRY_STORAGE_DELETE_ENABLED"} {
		must.Contain(t, host, remedy(host), want)
	}
}

// place is a registry server and the requests that it received.
type place struct {
	host string

	mu       sync.Mutex
	has      map[string]bool // blobs by digest, as answered
	again    []string
	requests []string                            // "PUT /v2/…/manifests/v1"
	refuse   func(r *http.Request) (status int)  // 0: serve it
	cut      func(r *http.Request) (after int64) // the connection breaks after that many bytes of the answer; -1: never
}

func newPlace(t *testing.T, o ...ggcr.Option) *place {
	t.Helper()
	p := &place{has: map[string]bool{}}
	handler := ggcr.New(append(o, ggcr.Logger(log.New(io.Discard, "", 0)))...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := p.note(r); status != 0 {
			http.Error(w, `{"errors":[{"code":"DENIED","message":"not here"}]}`, status)
			return
		}
		if after := p.cuts(r); after >= 0 {
			w = &cutting{ResponseWriter: w, left: after}
		}
		a := &answering{ResponseWriter: w}
		handler.ServeHTTP(a, r)
		p.looked(r, a.status)
	}))
	t.Cleanup(server.Close)
	p.host = strings.TrimPrefix(server.URL, "http://")
	return p
}

func (p *place) note(r *http.Request) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = append(p.requests, r.Method+" "+r.URL.Path)
	if p.refuse != nil {
		if status := p.refuse(r); status != 0 {
			return status
		}
	}
	if digest := r.URL.Query().Get("digest"); r.Method == http.MethodPut && digest != "" {
		if has, looked := p.has[digest]; has || !looked {
			p.again = append(p.again, digest)
		}
	}
	return 0
}

// let makes the place serve everything again.
func (p *place) let() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = nil
}

// sentAgain lists the blobs that were sent although they existed, or without a check.
func (p *place) sentAgain() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.again)
}

// looked records the place's answer to a check for a blob.
func (p *place) looked(r *http.Request, status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, digest, is := strings.Cut(r.URL.Path, "/blobs/"); is && r.Method == http.MethodHead {
		p.has[digest] = status == http.StatusOK
	}
}

// answering records the status of an answer.
type answering struct {
	http.ResponseWriter
	status int
}

func (a *answering) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

func (p *place) cuts(r *http.Request) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut == nil {
		return -1
	}
	return p.cut(r)
}

// cutting breaks the connection within an answer.
type cutting struct {
	http.ResponseWriter
	left int64
}

func (c *cutting) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if err == nil && n < len(p) {
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// set makes the place refuse what f says, and forget the requests that it received.
func (p *place) set(f func(r *http.Request) int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse, p.requests = f, nil
}

// asked returns the requests of one method, except those for the API version.
func (p *place) asked(method string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []string
	for _, r := range p.requests {
		if strings.HasPrefix(r, method+" ") && r != "GET /v2/" {
			list = append(list, r)
		}
	}
	return list
}

// copier is two registries, a client of both, and an index of two architectures in the first.
type copier struct {
	*Client
	from, to *place
	source   name.Digest
	mirror   name.Repository
}

func newCopier(t *testing.T, to ...ggcr.Option) *copier {
	t.Helper()
	c := &copier{from: newPlace(t, ggcr.WithReferrersSupport(true))}
	c.into(t, newPlace(t, to...))
	c.Client = must.Get(New(Options{Keychain: authn.NewMultiKeychain()}))(t)
	t.Cleanup(func() { must.Do(t, c.Close()) })
	index := must.Get(random.Index(512, 2, 2))(t)
	repository := must.Get(name.NewRepository(c.from.host + "/nocloud-installer/abc"))(t)
	c.source = repository.Digest(must.Get(index.Digest())(t).String())
	must.Do(t, remote.WriteIndex(repository.Tag("v1.13.9"), index))
	return c
}

// into directs copies to that registry.
func (c *copier) into(t *testing.T, to *place) {
	t.Helper()
	c.to, c.mirror = to, must.Get(name.NewRepository(to.host+"/acme/talos"))(t)
}

func (c *copier) signatureTag() string {
	return strings.Replace(c.source.DigestStr(), ":", "-", 1) + ".sig"
}

// sign puts an image under cosign's tag for signatures.
func (c *copier) sign(t *testing.T, in name.Repository) v1.Hash {
	t.Helper()
	sig := must.Get(random.Image(64, 1))(t)
	must.Do(t, remote.Write(in.Tag(c.signatureTag()), sig))
	return must.Get(sig.Digest())(t)
}

// refer puts an image into the source's repository whose subject is the source.
func (c *copier) refer(t *testing.T) v1.Hash {
	t.Helper()
	desc := must.Get(remote.Head(c.source))(t)
	r := mutate.Subject(must.Get(random.Image(64, 1))(t), *desc).(v1.Image)
	hash := must.Get(r.Digest())(t)
	must.Do(t, remote.Write(c.source.Context().Digest(hash.String()), r))
	return hash
}

func (c *copier) run(t *testing.T) error {
	t.Helper()
	return c.Copy(t.Context(), c.source.String(), c.mirror.String(), nil)
}

// whole fails the test unless the copy has every manifest and blob.
func (c *copier) whole(t *testing.T) {
	t.Helper()
	index := must.Get(remote.Index(c.mirror.Digest(c.source.DigestStr())))(t)
	must.Do(t, validate.Index(index))
	m := must.Get(index.IndexManifest())(t)
	must.Hold(t, len(m.Manifests) == 2, "%d manifests", len(m.Manifests))
}

func (c *copier) attach(t *testing.T) (sig, referrer v1.Hash) {
	t.Helper()
	return c.sign(t, c.source.Context()), c.refer(t)
}

// eachInBubble is each with the time of a bubble.
func eachInBubble[T any](t *testing.T, cases map[string]T, test func(t *testing.T, tc T)) {
	t.Helper()
	must.Each(t, cases, func(t *testing.T, tc T) {
		synctest.Test(t, func(t *testing.T) { test(t, tc) })
	})
}

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
		must.Be(t, err == nil && int64(len(content)) == r.SizeBytes,
			"%s: %d of %d bytes, %v", r.Name, len(content), r.SizeBytes, err)
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
	must.Hold(t, slices.Equal(left, []string{"recast-history-prod"}), "it is more than one tag: %q", left)
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
