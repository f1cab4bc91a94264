package talosapi_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// Unused images are removed after an hour; a pull skips stored images.
func TestUnusedImagesAreRemoved(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		_, c := l.node(image("old"))
		for _, after := range []time.Duration{0, time.Hour, 20 * time.Minute} {
			time.Sleep(after)
			if after < time.Hour {
				_, err := install(t.Context(), c, newRef)
				requireError(t, after.String()+" after", err, codes.Internal, "not found in containerd store")
			}
			if err := pull(t.Context(), c, newRef); err != nil {
				t.Fatal(err)
			}
		}
		mustInstall(t, c, newRef)
	})
}

func TestImageNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const digest = "sha256:6f1ed002ab5595859014ebf0951522d9"
		l := newLab(t, func(o *talosapi.Options) {
			o.ResolveImage = func(context.Context, string) (string, error) { return digest, nil }
		})
		_, c := l.node(image("old"))
		l.installers["registry.example/i@"+digest] = image("new")
		l.installers["registry.example/i:v1"] = image("new")
		names := func() []string {
			s, err := c.ImageClient.List(t.Context(), &machineapi.ImageServiceListRequest{Containerd: criSystem()})
			if err != nil {
				t.Fatal(err)
			}
			var all []string
			for {
				m, err := s.Recv()
				if err != nil {
					return all
				}
				all = append(all, m.GetName()+" "+m.GetDigest())
			}
		}
		if err := pull(t.Context(), c, "registry.example/i:v1@"+digest); err != nil {
			t.Fatal(err)
		}
		canonical := []string{"registry.example/i@" + digest + " " + digest, digest + " " + digest}
		if diff := cmp.Diff(canonical, names()); diff != "" {
			t.Errorf("after a pull by digest (-want +got):\n%s", diff)
		}
		if _, err := install(t.Context(), c, "registry.example/i:v1@"+digest); status.Code(err) != codes.Internal {
			t.Errorf("containerd found an image by tag and digest: %v", err)
		}
		if err := pull(t.Context(), c, "registry.example/i:v1"); err != nil {
			t.Fatal(err)
		}
		l.reboot(c, func() error { return c.Reboot(t.Context()) })
		if diff := cmp.Diff([]string{"registry.example/i:v1 " + digest, canonical[0], canonical[1]}, names()); diff != "" {
			t.Errorf("after a pull by tag and a reboot (-want +got):\n%s", diff)
		}
		s, err := c.ImageClient.List(t.Context(), &machineapi.ImageServiceListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("without a namespace: %v", err)
		}
	})
}
