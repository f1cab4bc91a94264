package registry

import (
	"net/http"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/fault"
)

// damaging flips a bit of its answer: in the n-th byte from the end.
type damaging struct {
	http.ResponseWriter
	fromEnd int
}

func (d damaging) Write(p []byte) (int, error) {
	b := append([]byte(nil), p...)
	b[max(0, len(b)-d.fromEnd)] ^= 1
	return d.ResponseWriter.Write(b)
}

// A damaged blob is reported as such, whichever step of unpacking fails first, and is
// no reason to lock anything else.
func TestDamagedBlob(t *testing.T) {
	t.Parallel()
	s := server()
	index := pushExtension(t, s)
	cases := map[string]int{"the end of gzip": 1, "its checksum": 8, "in the middle": 40, "the beginning": 1 << 20}
	each(t, cases, func(t *testing.T, fromEnd int) {
		c := client(t, damages(s, fromEnd))
		archive := must(c.Extract(t.Context(), index, "amd64"))(t)
		_, err := filesOf(t, archive)
		noError(t, archive.Close())
		saysDamaged(t, err)
	})
}

func TestDamagedCopy(t *testing.T) {
	t.Parallel()
	s := server()
	index := pushExtension(t, s)
	const mirror = "127.0.0.1:5001"
	from, to := damages(s, 1), server()
	c := client(t, direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Host == mirror {
			to.ServeHTTP(w, r)
			return
		}
		from.ServeHTTP(w, r)
	})})
	saysDamaged(t, c.Copy(t.Context(), index, mirror+"/acme/talos", nil))
}

// damages damages the blobs that a registry sends.
func damages(s direct, fromEnd int) direct {
	return direct{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			w = damaging{w, fromEnd}
		}
		s.ServeHTTP(w, r)
	})}
}

func saysDamaged(t *testing.T, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "a blob was damaged on the way: ") {
		t.Errorf("error %v", err)
	}
	err = fault.ImageDiffers.Else(err) // like a step that compares images
	if code := fault.CodeOf(err); code != fault.BuildFailed {
		t.Errorf("code %s", code)
	}
	if hints := strings.Join(fault.Hints(err), "; "); !strings.HasPrefix(hints, "run it again. ") || strings.Contains(hints, "lock") {
		t.Errorf("hints %q", hints)
	}
}
