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

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/google/go-cmp/cmp"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/talosapi"
)

const (
	wholeDisk = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: whole\nvolumeType: disk\nprovisioning: {diskSelector: {match: disk.serial == 'data-a'}}\n"
	directory = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: dir\nvolumeType: directory\n"
	shared    = "apiVersion: v1alpha1\nkind: ExternalVolumeConfig\nname: share\nfilesystemType: virtiofs\nmount: {virtiofs: {tag: share0}}\n"
	onDataB   = "apiVersion: v1alpha1\nkind: %s\nname: %s\nprovisioning: {diskSelector: {match: disk.serial == 'data-b'}, minSize: 1GiB, maxSize: 1GiB}\n"
	withNode  = "encryption: {provider: luks2, keys: [{slot: 0, nodeID: {}}]}\n"
)

// TestVolumesOfEveryKind: each has its status, what pods write lands where it is mounted, and on EPHEMERAL below the same
// path once its document is gone. A recreated machine finds them again, but opens none with another encryption.
func TestVolumesOfEveryKind(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.controlPlane(version("old", "v1.14.1"))
		a, b := disk("virtio1", "data-a", 20, nil), disk("virtio2", "data-b", 20, nil)
		documents := []string{
			wholeDisk, directory, shared, fmt.Sprintf(onDataB, "VolumeConfig", "CRI"), fmt.Sprintf(onDataB, "VolumeConfig", "LOG"),
			fmt.Sprintf(onDataB, "RawVolumeConfig", "raw") + withNode, fmt.Sprintf(onDataB, "UserVolumeConfig", "locked") + withNode,
		}
		create := func(documents ...string) (*box, *client.Client) {
			box, c := l.blank(workerAddr, version("old", "v1.14.1"), a, b)
			apply(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef, Documents: documents}))
			l.running(workerAddr)
			return box, l.client(workerAddr, role.Admin)
		}
		box, c := create(documents...)
		want(t, "volumes", everyVolume(t, c), "CRI partition ready /dev/vdc1, ETCD directory ready , KUBELET directory ready , LOG partition ready /dev/vdc2, r-raw partition ready /dev/vdc4, "+
			"u-dir directory ready , u-locked partition ready /dev/vdc3, u-whole disk ready /dev/vdb, x-share external ready share0")
		writes := func(path, volume string) {
			t.Helper()
			on, err := l.fw.PodWrites(box.hw.VMID, path, []byte("x"))
			must.Equal(t, path, []any{nil, volume}, []any{err, on})
		}
		writes("/var/mnt/whole/db", "u-whole")
		writes("/var/log/pods/a", "LOG")
		writes("/var/mnt/dir/db", "EPHEMERAL")
		apply(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef, Documents: slices.Delete(slices.Clone(documents), 0, 1)}))
		writes("/var/mnt/whole/db", "EPHEMERAL")
		must.Equal(t, "a volume without a document has a status", false, strings.Contains(everyVolume(t, c), "u-whole"))
		kept := talosapi.Lasting(a.Media.Bytes())
		box.guest.Kill()

		documents[5], documents[6] = fmt.Sprintf(onDataB, "RawVolumeConfig", "raw"), fmt.Sprintf(onDataB, "UserVolumeConfig", "locked")
		documents[3] = strings.TrimSpace(documents[3]) + "\n" + withNode
		box, c = create(documents...)
		want(t, "volumes of the recreated machine", everyVolume(t, c), "CRI partition failed /dev/vdc1: block dev type mismatch: xfs != luks, ETCD directory ready , KUBELET directory ready , LOG partition ready /dev/vdc2, r-raw partition ready /dev/vdc4, "+
			"u-dir directory ready , u-locked partition failed /dev/vdc3: filesystem type mismatch: luks != xfs, u-whole disk ready /dev/vdb, x-share external ready share0")
		must.Equal(t, "the whole disk changed", kept, talosapi.Lasting(a.Media.Bytes()))
		writes("/var/mnt/locked/db", "EPHEMERAL")
		box.guest.Kill()
	})
}

// everyVolume are the volumes of the configuration, but for EPHEMERAL and those that every system disk has.
func everyVolume(t *testing.T, c *client.Client) string {
	t.Helper()
	all := must.Get(safe.StateListAll[*block.VolumeStatus](t.Context(), c.COSI))(t)
	var lines []string
	for v := range all.All() {
		if spec := v.TypedSpec(); !slices.Contains([]string{"META", "STATE", "EPHEMERAL"}, v.Metadata().ID()) {
			line := fmt.Sprintf("%s %s %s %s", v.Metadata().ID(), spec.Type, spec.Phase, spec.Location)
			if spec.ErrorMessage != "" {
				line += ": " + spec.ErrorMessage
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

// TestVolumesThatCannotBe: Talos' own errors, for what a selector matches on an installed machine.
func TestVolumesThatCannotBe(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.controlPlane(version("old", "v1.14.1"))
		const partition, whole = "minSize: 1GiB}\n", "}\nvolumeType: disk\n"
		selecting := func(name, match, rest string) string {
			return fmt.Sprintf("apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: %s\nprovisioning: {diskSelector: {match: %q}, %s", name, match, rest)
		}
		_, c := l.blank(workerAddr, version("old", "v1.14.1"), disk("virtio1", "data-a", 20, nil), disk("virtio2", "data-b", 20, nil))
		apply(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef, Documents: []string{
			selecting("none", "disk.transport == 'nvme'", partition), selecting("large", "disk.serial == 'data-a'", "minSize: 900GiB}\n"),
			selecting("two", "disk.serial.startsWith('data-')", whole), selecting("attribute", "!system_disk && disk.size > 1u", whole),
			selecting("system", "disk.size < 15u * GiB && disk.transport == 'virtio' && !disk.cdrom", whole), selecting("fits", "disk.serial == 'data-b'", partition),
		}}))
		l.running(workerAddr)
		must.Contain(t, "volumes", everyVolume(t, l.client(workerAddr, role.Admin)),
			"u-none partition failed : no disks matched selector for volume", "u-fits partition ready /dev/vdc1",
			"u-large partition failed : no disks matched for volume (1 matched selector): 1 have not enough space, 0 have wrong format, 0 have other issues",
			"u-two disk failed : multiple disks matched locator for disk volume; matched disks: [/dev/vdb /dev/vdc]",
			"u-attribute disk failed : error evaluating disk locator: no such attribute(s): system_disk",
			"u-system disk failed : filesystem type mismatch: gpt != xfs",
		)
	})
}

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

// TestFiles lists, reads and copies the files of one machine.
func TestFiles(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.node(image("old"))
		l.lists(t)
		l.reads(t)
		l.copies(t)
	})
}

func (l *lab) lists(t *testing.T) {
	t.Helper()
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
}

// answered is the code and message of an error.
func answered(err error) string {
	if err == nil {
		return ""
	}
	return status.Code(err).String() + " " + status.Convert(err).Message()
}

func (l *lab) reads(t *testing.T) {
	t.Helper()
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
}

func (l *lab) copies(t *testing.T) {
	t.Helper()
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

// TestFilesOfExtensions: the squashfs of a later extension overrides earlier ones, and links
// are links on the node too, with the same targets. imager takes firmware out of an
// extension; the node has it all the same, except microcode, which is no longer a file.
func TestFilesOfExtensions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		img := image("old")
		img.Extensions = append(img.Extensions, artefact.Extension{
			Name: "over", Version: "v1", Files: map[string][]byte{"/usr/local/sbin/iscsid": []byte("of over")},
		}, artefact.Extension{
			Name: "tool", Version: "v1", Files: map[string][]byte{"/usr/local/lib/tool/lib.so.0": []byte("library")},
			Links: map[string]string{"/usr/local/lib/tool/lib.so": "lib.so.0", "/usr/local/lib/lib": "/usr/local/lib/tool"},
		}, artefact.Extension{
			Name: "nic", Version: "v1", Files: map[string][]byte{
				"/usr/lib/firmware/nic/a.bin": []byte("blob"), "/usr/lib/firmware/intel-ucode/06-9e-09": []byte("ucode"), "/usr/local/bin/nic": []byte("nic"),
			},
		})
		_, c := newLab(t).node(img)
		for path, content := range map[string]string{
			"/usr/local/sbin/iscsid": "of over", "/usr/local/lib/lib/lib.so": "library", "/usr/lib/firmware/nic/a.bin": "blob", "/usr/local/bin/nic": "nic",
		} {
			got, err := readFile(t.Context(), c, path)
			if err != nil {
				t.Error(err)
			}
			want(t, path, got, content)
		}
		for root, files := range map[string][]string{
			"/usr/local/lib/tool": {"./", "lib.so -> lib.so.0", "lib.so.0 7"},
			"/usr/lib/firmware":   {"./", "nic/", "nic/a.bin 4"},
		} {
			got, err := listed(t.Context(), c, &machineapi.ListRequest{Root: root, Recurse: true})
			got = slices.DeleteFunc(got, func(line string) bool { return line == "intel-ucode/" }) // the directory may remain
			if diff := cmp.Diff(files, got); diff != "" || err != nil {
				t.Errorf("%s: err = %v (-want +got):\n%s", root, err, diff)
			}
		}
	})
}

// TestNamesFollowTheIdentity: machine-id, IQN and NQN stay over a reboot, and are others on a new system disk.
func TestNamesFollowTheIdentity(t *testing.T) {
	inLab(t, func(t *testing.T, l *lab) {
		l.controlPlane(version("old", "v1.14.1"))
		read := func(c *client.Client) (names []string) {
			t.Helper()
			for _, at := range []string{"/etc/machine-id", "/etc/iscsi/initiatorname.iscsi", "/etc/nvme/hostid", "/etc/nvme/hostnqn"} {
				r := must.Get(c.Read(t.Context(), at))(t)
				text := must.Get(io.ReadAll(r))(t)
				names = append(names, strings.TrimSpace(string(text)))
			}
			return names
		}
		create := func() (*box, []string) {
			box, c := l.blank(workerAddr, version("old", "v1.14.1"))
			apply(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef}))
			l.running(workerAddr)
			return box, read(l.client(workerAddr, role.Admin))
		}
		box, first := create()
		if first[1] != "InitiatorName=iqn.2017-11.dev.talos:"+first[0] || first[3] != "nqn.2017-11.dev.talos:uuid:"+first[2] || len(first[0]) != 32 {
			t.Errorf("names: %q", first)
		}
		c := l.client(workerAddr, role.Admin)
		l.reboot(c, func() error { return c.Reboot(t.Context()) })
		want(t, "after a reboot", strings.Join(read(l.client(workerAddr, role.Admin)), " "), strings.Join(first, " "))
		box.guest.Kill()
		box, second := create()
		for i := range first {
			if first[i] == second[i] {
				t.Errorf("%q is that of the old system disk", second[i])
			}
		}
		box.guest.Kill()
	})
}
