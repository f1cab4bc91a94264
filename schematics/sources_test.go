package schematics

import (
	"context"
	"encoding/pem"
	"errors"
	"path"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/internal/fault"
)

// list is a list of official extensions of a registry or a factory.
type list []OfficialExtension

func (l list) Official(context.Context, string) ([]OfficialExtension, error) { return l, nil }

// with returns the list with another digest for one extension.
func (l list) with(name, digest string) list {
	var changed list
	for _, x := range l {
		if x.Name == name {
			x.Digest = digest
		}
		changed = append(changed, x)
	}
	return changed
}

func catalog() list {
	var l list
	for _, name := range []string{"i915", "iscsi-tools", "qemu-guest-agent", "util-linux-tools"} {
		l = append(l, OfficialExtension{
			Name: "siderolabs/" + name, Version: "1.0", Ref: "ghcr.io/siderolabs/" + name, Digest: digestOf(name),
		})
	}
	return l
}

// maker is a factory with its own lists.
type maker struct {
	extensions  list
	overlays    []OfficialOverlay
	broken      []string
	certificate []byte
	fail        error

	asked []string
}

func (m *maker) ask(what string) error {
	m.asked = append(m.asked, what)
	return m.fail
}

func (m *maker) Extensions(_ context.Context, talos string) ([]OfficialExtension, error) {
	if slices.Contains(m.broken, talos) {
		return nil, fault.Configf("404 version is not available")
	}
	return m.extensions, m.ask("extensions")
}

func (m *maker) Overlays(context.Context, string) ([]OfficialOverlay, error) {
	return m.overlays, m.ask("overlays")
}

func (m *maker) Broken(context.Context) ([]string, error) { return m.broken, m.ask("broken") }

func (m *maker) SecureBootCertificate(context.Context) ([]byte, error) {
	if m.certificate == nil {
		return nil, fault.Configf("secure boot is disabled")
	}
	return m.certificate, m.ask("certificate")
}

func certificate(text string) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)})
}

// shelf is a registry of extension images.
type shelf struct {
	tags   map[string]string         // digest by repository:tag
	images map[string]ExtensionImage // by repository@digest
	fail   error

	asked []string
}

// newShelf has the images of a list.
func newShelf(l list) *shelf {
	s := &shelf{tags: map[string]string{}, images: map[string]ExtensionImage{}}
	for _, x := range l {
		s.put(x.Ref, "", x.Digest, ExtensionImage{Architectures: []string{"amd64", "arm64"}, Name: path.Base(x.Name), Version: x.Version})
	}
	return s
}

// put stores an image and tags it.
func (s *shelf) put(repository, tag, digest string, image ExtensionImage) {
	s.images[repository+"@"+digest] = image
	if tag != "" {
		s.tags[repository+":"+tag] = digest
	}
}

func (s *shelf) Digest(_ context.Context, ref string) (string, bool, error) {
	s.asked = append(s.asked, ref)
	digest, ok := s.tags[ref]
	return digest, ok, s.fail
}

func (s *shelf) Describe(_ context.Context, ref, arch string) (ExtensionImage, error) {
	s.asked = append(s.asked, ref)
	image, ok := s.images[ref]
	if !ok && s.fail == nil {
		return ExtensionImage{}, fault.Configf("the registry has no %s", ref)
	}
	if !slices.Contains(image.Architectures, arch) {
		image.Name, image.Version = "", ""
	}
	return image, s.fail
}

var errAway = errors.New("away")

// nowhere is an unreachable catalog.
type nowhere struct{}

func (nowhere) Official(context.Context, string) ([]OfficialExtension, error) { return nil, errAway }

// must returns v, or ends the test with the error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		noError(t, err)
		return v
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same compares what came with what is wanted.
func same(t testing.TB, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// each runs a test for every case, all at once.
func each[T any](t *testing.T, cases map[string]T, test func(t *testing.T, tc T)) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, tc)
		})
	}
}
