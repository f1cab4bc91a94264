package talos_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/talos"
)

// read reads one file of the control plane.
func read(ctx context.Context, c *talos.Client, name string, sizeBytes int64) (text string, err error) {
	var b bytes.Buffer
	err = c.Files(ctx, cpAddr, cpUUID, func(ctx context.Context, files cluster.MachineFiles) error {
		return files.Read(ctx, name, sizeBytes, &b)
	})
	return b.String(), err
}

// paths lists a directory of the control plane.
func paths(ctx context.Context, c *talos.Client, dir string, deep bool) (list []string, err error) {
	err = c.Files(ctx, cpAddr, cpUUID, func(ctx context.Context, files cluster.MachineFiles) error {
		return files.List(ctx, dir, deep, func(f cluster.MachineFile) error {
			list = append(list, f.Path+" "+f.Mode.String()+" "+f.Link)
			return nil
		})
	})
	return list, err
}

func TestFiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c, ctx := l.client(role.Admin), t.Context()
		l.running(c, cpAddr)

		const name, text = "/proc/cmdline", "talos.platform=nocloud\n"
		if got, err := read(ctx, c, name, int64(len(text))); got != text || err != nil {
			t.Errorf("read: %q, %v", got, err)
		}
		for what, test := range map[string]struct {
			size int64
			want string
		}{
			"too long":  {5, "127.42.7.11: read /proc/cmdline: it is longer than the 5 bytes listed"},
			"too short": {50, "127.42.7.11: read /proc/cmdline: it ended after 23 of 50 bytes"},
		} {
			if _, err := read(ctx, c, name, test.size); err == nil || err.Error() != test.want {
				t.Errorf("%s: %v", what, err)
			}
		}
		want := []string{
			"/usr/local/share/ca-certificates Lrwxrwxrwx /etc/ssl", "/usr/local/share/schematic drwxr-xr-x ", "/usr/local/share/schematic/cafe -rw-r--r-- ",
		}
		if got, err := paths(ctx, c, "/usr/local/share", true); !slices.Equal(got, want) || err != nil {
			t.Errorf("list: %q, %v", got, err)
		}
		if got, err := paths(ctx, c, "/usr/local/share", false); !slices.Equal(got, want[:2]) || err != nil {
			t.Errorf("list one level: %q, %v", got, err)
		}
		if _, err := paths(ctx, c, "/usr/none", true); !errors.Is(err, cluster.ErrNotFound) {
			t.Errorf("list a missing directory: %v", err)
		}

		reader := l.client(role.Reader)
		if _, err := read(ctx, reader, name, 23); err == nil || !strings.Contains(err.Error(), "it takes a talosconfig with the role os:admin to read a node's files: our talosconfig may not: not authorized") {
			t.Errorf("read as a reader: %v", err)
		}
		err := c.Files(ctx, cpAddr, workerUUID, func(context.Context, cluster.MachineFiles) error { return errors.New("it looked") })
		if fault.KindOf(err) != fault.Refused || !strings.HasSuffix(err.Error(), "none of its files was read") {
			t.Errorf("another machine: %v", err)
		}
	})
}

func TestClaims(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		l.running(l.client(role.Admin), cpAddr)
		want := observe.Claims{
			TalosVersion: version, Arch: "amd64", Platform: "nocloud",
			Layers: []observe.ExtensionLayer{
				{Name: "qemu-guest-agent", Version: "10.0.2"},
				{Name: "iscsi-tools", Version: "v0.2.0"},
				{Name: "schematic", Version: "cafe", Author: "Image Factory (http://127.0.0.1:8080)", ExtraInfo: image().SchematicYAML},
				{Name: "modules.dep", Version: "6.18.0-talos"},
			},
			Booted: observe.BootClaims{Entry: "talos-v1.13.9.efi", Next: "talos-v1.13.9.efi", UKI: new(true), Cmdline: true},
		}
		for _, r := range []role.Role{role.Admin, role.Reader} {
			if r == role.Reader {
				want.Booted.Next = "" // it is in a file
			}
			got, err := l.client(r).Claims(t.Context(), cpAddr, cpUUID)
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%s: err = %v (-want +got):\n%s", r, err, diff)
			}
		}
		if _, err := l.client(role.Admin).Claims(t.Context(), cpAddr, workerUUID); fault.KindOf(err) != fault.Refused {
			t.Errorf("another machine: %v", err)
		}
	})
}

// TestFilesOfMissingMachine: a missing machine is not a machine without files.
func TestFilesOfMissingMachine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		c := l.client(role.Admin)
		err := c.Files(t.Context(), netip.MustParseAddr("127.42.7.99"), cpUUID, func(ctx context.Context, files cluster.MachineFiles) error {
			return files.Read(ctx, "/proc/cmdline", 1, io.Discard)
		})
		if err == nil || errors.Is(err, cluster.ErrNotFound) {
			t.Errorf("err = %v", err)
		}
	})
}
