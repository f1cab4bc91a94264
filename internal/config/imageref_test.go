package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/config"
)

// FuzzImageRef: what is taken is one tag, one digest or both of one repository,
// is written as it was read, and no error shows what may be a password.
func FuzzImageRef(f *testing.F) {
	digest := "@sha256:" + strings.Repeat("0a", 32)
	for _, s := range []string{
		"ghcr.io/acme/frr:1.7.15" + digest, "ghcr.io/acme/frr" + digest, "localhost:5000/frr:v1", "127.0.0.1:5000/a/b-c__d:_x", "acme/frr:1", "frr",
		"ghcr.io:443/a" + digest + digest, "me:hunter2@ghcr.io/a:1", "https://ghcr.io/a:1", "ghcr.io/a:" + strings.Repeat("b", 128), "ghcr.io/a:b:c", "ghcr.io//a:1", ":", "@", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var r config.ImageRef
		if err := r.UnmarshalText([]byte(text)); err != nil {
			if r != (config.ImageRef{}) {
				t.Errorf("%q: an error, and %+v", text, r)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%q is shown: %v", text, err)
			}
			return
		}
		if r.String() != text {
			t.Errorf("%q is written as %q", text, r)
		}
		if r.Repository == "" || strings.ContainsAny(r.Repository, "@ \n") || r.Tag == "" && r.Digest == "" || strings.ContainsAny(r.Tag, ":/@") {
			t.Errorf("%q makes %+v", text, r)
		}
		if host, path, ok := strings.Cut(r.Repository, "/"); !ok || host == "" || path == "" || path != strings.ToLower(path) {
			t.Errorf("%q: repository %q", text, r.Repository)
		}
	})
}

func TestBuilderOf(t *testing.T) {
	t.Parallel()
	plain := config.Schematic{File: "base.yaml"}
	own := config.Schematic{File: "base.yaml", Extensions: []config.ImageRef{{Repository: "ghcr.io/acme/frr", Tag: "1"}}}
	got := map[string][]string{}
	for _, builder := range []string{config.BuilderAuto, config.BuilderFactory, config.BuilderImager} {
		im := config.Images{Builder: builder}
		got[builder] = []string{im.BuilderOf(plain), im.BuilderOf(own)}
	}
	want := map[string][]string{"auto": {"factory", "imager"}, "factory": {"factory", "factory"}, "imager": {"imager", "imager"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("builders of a plain schematic and of one with its own extension, -want +got\n%s", diff)
	}
}
