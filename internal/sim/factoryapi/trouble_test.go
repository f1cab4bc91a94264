package factoryapi_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/sim/factoryapi"
)

const storeAddr = "127.0.0.1:8081"

// got is an answer as the client sees it.
type got struct {
	status     int
	kind       string
	retryAfter string
	body       string
	cut        bool
	took       time.Duration
}

func (l *lab) see(path string) (got, error) {
	req, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, "http://"+factoryAddr+path, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	start := time.Now()
	resp, err := l.transport.RoundTrip(req)
	if err != nil {
		return got{took: time.Since(start)}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		l.t.Error(err)
	}
	return got{
		status: resp.StatusCode, kind: resp.Header.Get("Content-Type"), retryAfter: resp.Header.Get("Retry-After"),
		body: string(body), cut: err != nil, took: time.Since(start),
	}, nil
}

func TestTroubles(t *testing.T) {
	t.Parallel()
	const versions = `["v1.13.8","v1.13.9","v1.14.0-rc.0"]` + "\n"
	nginx := func(text string) string {
		return "<html>\r\n<head><title>" + text + "</title></head>\r\n<body>\r\n<center><h1>" + text + "</h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
	}
	for name, tc := range map[string]struct {
		trouble factoryapi.Trouble
		path    string
		want    got
	}{
		"down":         {factoryapi.Down(502, 0), "/versions", got{status: 502, kind: "text/html", body: nginx("502 Bad Gateway")}},
		"limited":      {factoryapi.Down(429, time.Minute), "/versions", got{status: 429, kind: "text/html", retryAfter: "60", body: nginx("429 Too Many Requests")}},
		"failing":      {factoryapi.Failing(), "/versions", got{status: 500, kind: "text/plain; charset=utf-8", body: "internal server error\n"}},
		"unaware":      {factoryapi.Unaware(), "/image/abc/v1.13.9/x.iso", got{status: 404, kind: "text/plain; charset=utf-8", body: "schematic ID \"abc\" not found\n"}},
		"cut":          {factoryapi.Cut(7), "/versions", got{status: 200, kind: "text/plain; charset=utf-8", body: versions[:7], cut: true}},
		"cut by store": {factoryapi.CutByStore(7), "/versions", got{status: 200, kind: "text/plain; charset=utf-8", body: versions[:7] + "internal server error\n", cut: true}},
		"cut too late": {factoryapi.Cut(7000), "/versions", got{status: 200, kind: "text/plain; charset=utf-8", body: versions}},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, func(t *testing.T, l *lab) {
				l.factory.Strike(1, tc.path, tc.trouble)
				answer, err := l.see(tc.path)
				if diff := cmp.Diff(tc.want, answer, cmp.AllowUnexported(got{})); err != nil || diff != "" {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
				if answer, err = l.see("/versions"); err != nil || answer.body != versions {
					t.Errorf("afterwards: %+v, %v", answer, err)
				}
			})
		})
	}
}

// TestBuilt: HEAD builds too, and cached assets are not rebuilt.
func TestBuilt(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		id := l.register(nil)
		iso := "/image/" + id + "/" + talosVersion + "/nocloud-amd64.iso"
		l.do(http.MethodHead, iso, "")
		l.do(http.MethodGet, iso, "")
		l.do(http.MethodHead, "/v2/metal-installer/"+id+"/manifests/"+talosVersion, "")
		l.do(http.MethodGet, "/v2/metal-installer/"+id+"/manifests/"+talosVersion, "")
		l.do(http.MethodHead, "/v2/metal-installer/"+id+"/manifests/sha256-"+strings.Repeat("0", 64)+".sig", "")
		want := []string{"iso " + id + " " + talosVersion + " nocloud-amd64", "installer " + id + " " + talosVersion + " metal"}
		if diff := cmp.Diff(want, l.factory.Built()); diff != "" {
			t.Errorf("built (-want +got):\n%s", diff)
		}
	})
}

// TestStore: an image is only available by the signed URL that the factory redirects to.
func TestStore(t *testing.T) {
	inLabWith(t, func(o *factoryapi.Options) { o.Store = "http://" + storeAddr }, func(t *testing.T, l *lab) {
		path := "/image/" + l.register(nil) + "/" + talosVersion + "/nocloud-amd64.iso"
		if head, _ := l.do(http.MethodHead, path, ""); head.StatusCode != http.StatusOK || head.ContentLength < 1 {
			t.Errorf("HEAD: %s, %d bytes", head.Status, head.ContentLength)
		}
		resp, _ := l.do(http.MethodGet, path, "")
		link := resp.Header.Get("Location")
		if resp.StatusCode != http.StatusFound || !strings.HasPrefix(link, "http://"+storeAddr+"/") {
			t.Fatalf("GET: %s to %q", resp.Status, link)
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(link, "http://"+storeAddr), "?")
		for text, tc := range map[string]struct {
			link, authorization string
			status              int
			code                string
		}{
			"signed":             {link, "", http.StatusOK, ""},
			"signed for another": {strings.Replace(link, name, "/other", 1), "", http.StatusForbidden, "<Code>SignatureDoesNotMatch</Code>"},
			"not signed":         {"http://" + storeAddr + name, "", http.StatusForbidden, "<Code>SignatureDoesNotMatch</Code>"},
			"other credentials":  {link, "Basic abc", http.StatusBadRequest, "<Code>InvalidArgument</Code>"},
		} {
			req := httptest.NewRequest(http.MethodGet, tc.link, nil)
			if tc.authorization != "" {
				req.Header.Set("Authorization", tc.authorization)
			}
			rec := httptest.NewRecorder()
			l.factory.Store().ServeHTTP(rec, req)
			if rec.Code != tc.status || !strings.Contains(rec.Body.String(), tc.code) {
				t.Errorf("%s: %d %.300q", text, rec.Code, rec.Body)
			}
		}
	})
}
