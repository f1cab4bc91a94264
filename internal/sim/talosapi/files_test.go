package talosapi_test

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// listed is a line for each listed file: relative name, kind, size.
func listed(ctx context.Context, c *client.Client, req *machineapi.ListRequest) (lines []string, err error) {
	stream, err := c.LS(ctx, req)
	if err != nil {
		return nil, err
	}
	for {
		f, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return lines, err
		}
		line := f.GetRelativeName()
		switch mode := fs.FileMode(f.GetMode()); {
		case mode.IsDir():
			line += "/"
		case f.GetLink() != "":
			line += " -> " + f.GetLink()
		default:
			line += fmt.Sprintf(" %d", f.GetSize())
		}
		lines = append(lines, line)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		b := l.controlPlane()
		defer b.guest.Kill()
		l.running(cpAddr)
		c := l.client(cpAddr, role.Reader) // a reader may list, but not read
		below := []string{
			"./", "lib/", "lib/kubelet/", "lib/kubelet/credentialproviders/", "sbin/", "sbin/iscsid 13",
			"share/", "share/ca-certificates -> /etc/ssl", "share/schematic/", "share/schematic/schematic-old 0",
		}
		for name, test := range map[string]struct {
			req  *machineapi.ListRequest
			want []string
			err  string
		}{
			"one level":          {req: &machineapi.ListRequest{Root: "/usr/local/"}, want: []string{"./", "lib/", "sbin/", "share/"}},
			"no leading slash":   {req: &machineapi.ListRequest{Root: "usr/local/sbin"}, want: []string{"./", "iscsid 13"}},
			"all":                {req: &machineapi.ListRequest{Root: "/usr/local", Recurse: true}, want: below},
			"two levels":         {req: &machineapi.ListRequest{Root: "/usr/local/lib", Recurse: true, RecursionDepth: 1}, want: []string{"./", "kubelet/"}},
			"a file":             {req: &machineapi.ListRequest{Root: "/usr/local/sbin/iscsid"}, want: []string{"iscsid 13"}},
			"through a link":     {req: &machineapi.ListRequest{Root: "/usr/local/share/ca-certificates"}, want: []string{"./", "certs/"}},
			"made by the kernel": {req: &machineapi.ListRequest{Root: "/proc/cmdline"}, want: []string{"cmdline 0"}},
			"only files":         {req: &machineapi.ListRequest{Root: "/usr/local", Types: []machineapi.ListRequest_Type{machineapi.ListRequest_REGULAR}}, want: []string{"sbin/iscsid 13", "share/schematic/schematic-old 0"}},
			"files and links": {
				req:  &machineapi.ListRequest{Root: "/usr/local/share", Recurse: true, Types: []machineapi.ListRequest_Type{machineapi.ListRequest_REGULAR, machineapi.ListRequest_SYMLINK}},
				want: []string{"ca-certificates -> /etc/ssl", "schematic/schematic-old 0"},
			},
			"nothing there": {req: &machineapi.ListRequest{Root: "/usr/none"}, err: "Unknown lstat /usr/none: no such file or directory"},
		} {
			got, err := listed(t.Context(), c, test.req)
			if diff := cmp.Diff(test.want, got); diff != "" || answered(err) != test.err {
				t.Errorf("%s: err = %v (-want +got):\n%s", name, err, diff)
			}
		}
	})
}

// answered is the code and message of an error.
func answered(err error) string {
	if err == nil {
		return ""
	}
	return status.Code(err).String() + " " + status.Convert(err).Message()
}

func TestReadFiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		b := l.controlPlane()
		defer b.guest.Kill()
		l.running(cpAddr)
		for name, test := range map[string]struct {
			as         role.Role
			path, want string
			err        string
		}{
			"a file of an extension": {as: role.Admin, path: "/usr/local/sbin/iscsid", want: "iscsid of old"},
			"the list of extensions": {as: role.Admin, path: "/etc/extensions.yaml", want: "layers:\n    - image: 0.sqsh\n"},
			"the schematic's":        {as: role.Admin, path: "/usr/local/share/schematic/schematic-old"},
			"nothing there":          {as: role.Admin, path: "/usr/none", err: "NotFound stat /usr/none: no such file or directory"},
			"below a file":           {as: role.Admin, path: "/usr/local/sbin/iscsid/x", err: "NotFound stat /usr/local/sbin/iscsid/x: no such file or directory"},
			"a directory":            {as: role.Admin, path: "/usr/local", err: "Unknown path must be a regular file"},
			"a link to a directory":  {as: role.Admin, path: "/usr/local/share/ca-certificates", err: "Unknown path must be a regular file"},
			"as an operator":         {as: role.Operator, path: "/usr/local/sbin/iscsid", err: "PermissionDenied not authorized"},
			"as a reader":            {as: role.Reader, path: "/usr/local/sbin/iscsid", err: "PermissionDenied not authorized"},
		} {
			got, err := readFile(t.Context(), l.client(cpAddr, test.as), test.path)
			if !strings.HasPrefix(got, test.want) || test.want == "" && got != "" || answered(err) != test.err {
				t.Errorf("%s: %q, err = %v", name, got, err)
			}
		}
	})
}

func TestCopyFiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		b := l.controlPlane()
		defer b.guest.Kill()
		l.running(cpAddr)
		for name, test := range map[string]struct {
			as   role.Role
			path string
			want []string
			err  string
		}{
			"a directory": {as: role.Admin, path: "/usr/local/", want: []string{
				"lib/", "lib/kubelet/", "lib/kubelet/credentialproviders/", "sbin/", "sbin/iscsid iscsid of old",
				"share/", "share/ca-certificates -> /etc/ssl", "share/schematic/", "share/schematic/schematic-old ",
			}},
			"a file":        {as: role.Admin, path: "/usr/local/sbin/iscsid", want: []string{"iscsid iscsid of old"}},
			"nothing there": {as: role.Admin, path: "/usr/none", err: "Unknown lstat /usr/none: no such file or directory"},
			"not absolute":  {as: role.Admin, path: "usr/", err: "Unknown path is not absolute usr"},
			"as a reader":   {as: role.Reader, path: "/usr/local", err: "PermissionDenied not authorized"},
		} {
			got, err := copied(t.Context(), l.client(cpAddr, test.as), test.path)
			if diff := cmp.Diff(test.want, got); diff != "" || answered(err) != test.err {
				t.Errorf("%s: err = %v (-want +got):\n%s", name, err, diff)
			}
		}
	})
}

func copied(ctx context.Context, c *client.Client, path string) (lines []string, err error) {
	r, err := c.Copy(ctx, path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	archive := tar.NewReader(z)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return lines, err
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return lines, err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			lines = append(lines, h.Name)
		case tar.TypeSymlink:
			lines = append(lines, h.Name+" -> "+h.Linkname)
		default:
			lines = append(lines, h.Name+" "+string(content))
		}
	}
}

// TestFilesInMaintenance: every caller is a reader there, and a reader may not read files.
func TestFilesInMaintenance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, nil), cdrom(l.iso(image("old"))))
		b.on()
		defer func() { b.guest.Kill() }()
		c := l.insecure(cpAddr)
		l.awaitStage(c, runtime.MachineStageMaintenance)
		if _, err := readFile(t.Context(), c, "/usr/local/sbin/iscsid"); answered(err) != "PermissionDenied not authorized" {
			t.Errorf("read: %v", err)
		}
		if _, err := copied(t.Context(), c, "/usr/local"); answered(err) != "PermissionDenied not authorized" {
			t.Errorf("copy: %v", err)
		}
		if got, err := listed(t.Context(), c, &machineapi.ListRequest{Root: "/usr/local/sbin"}); err != nil || len(got) != 2 {
			t.Errorf("list: %q, %v", got, err)
		}
	})
}

// TestLaterExtensionWins: the squashfs of a later extension overrides earlier ones.
func TestLaterExtensionWins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		img := image("old")
		over := img.Extensions[0]
		over.Name, over.Files = "over", map[string][]byte{"/usr/local/sbin/iscsid": []byte("of over")}
		img.Extensions = append(img.Extensions, over)
		conf := l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: oldRef})
		b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, l.installedControlPlane(conf, img)), cdrom(nil))
		b.hw.NVRAM.Write(talosapi.NVRAM(img))
		b.on()
		defer b.guest.Kill()
		l.running(cpAddr)
		if got, err := readFile(t.Context(), l.client(cpAddr, role.Admin), "/usr/local/sbin/iscsid"); got != "of over" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	})
}

// TestLinksOfExtensions: they are links on the node too, with the same targets.
func TestLinksOfExtensions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		img := image("old")
		img.Extensions[0].Files = map[string][]byte{"/usr/local/lib/tool/lib.so.0": []byte("library")}
		img.Extensions[0].Links = map[string]string{"/usr/local/lib/tool/lib.so": "lib.so.0", "/usr/local/lib/lib": "/usr/local/lib/tool"}
		conf := l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: oldRef})
		b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, l.installedControlPlane(conf, img)), cdrom(nil))
		b.hw.NVRAM.Write(talosapi.NVRAM(img))
		b.on()
		defer b.guest.Kill()
		l.running(cpAddr)
		c := l.client(cpAddr, role.Admin)
		want := []string{"./", "lib.so -> lib.so.0", "lib.so.0 7"}
		if got, err := listed(t.Context(), c, &machineapi.ListRequest{Root: "/usr/local/lib/tool"}); !cmp.Equal(want, got) || err != nil {
			t.Errorf("list: %q, %v", got, err)
		}
		if got, err := readFile(t.Context(), c, "/usr/local/lib/lib/lib.so"); got != "library" || err != nil {
			t.Errorf("read: %q, %v", got, err)
		}
	})
}

// TestFirmwareIsWhereItBelongs: imager takes firmware out of an extension; the node has it
// all the same, except microcode, which is no longer a file.
func TestFirmwareIsWhereItBelongs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t)
		img := image("old")
		img.Extensions[0].Files = map[string][]byte{
			"/usr/lib/firmware/nic/a.bin": []byte("blob"), "/usr/lib/firmware/intel-ucode/06-9e-09": []byte("ucode"), "/usr/local/bin/tool": []byte("tool"),
		}
		conf := l.config(talosapi.Machine{Hostname: "cp1", ControlPlane: true, Installer: oldRef})
		b := l.box(9001, "02:00:00:00:00:0B", disk("virtio0", "system", 10, l.installedControlPlane(conf, img)), cdrom(nil))
		b.hw.NVRAM.Write(talosapi.NVRAM(img))
		b.on()
		defer b.guest.Kill()
		l.running(cpAddr)
		c := l.client(cpAddr, role.Admin)
		for path, want := range map[string]string{"/usr/lib/firmware/nic/a.bin": "blob", "/usr/local/bin/tool": "tool"} {
			if got, err := readFile(t.Context(), c, path); got != want || err != nil {
				t.Errorf("%s: %q, %v", path, got, err)
			}
		}
		want := []string{"./", "nic/", "nic/a.bin 4"}
		got, err := listed(t.Context(), c, &machineapi.ListRequest{Root: "/usr/lib/firmware", Recurse: true})
		if err == nil { // the microcode's directory may remain
			got = slices.DeleteFunc(got, func(line string) bool { return line == "intel-ucode/" })
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("err = %v (-want +got):\n%s", err, diff)
		}
	})
}
