package talosapi

import (
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/extensions"
	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// nodeFile is one file of a running system.
type nodeFile struct {
	mode   fs.FileMode
	data   []byte // of a regular file
	link   string // target of a symbolic link
	kernel bool   // the kernel makes its content up when it is read: its size is 0
}

func (f nodeFile) size() int64 {
	switch {
	case f.kernel:
		return 0
	case f.mode&fs.ModeSymlink != 0:
		return int64(len(f.link))
	}
	return int64(len(f.data))
}

// nodeFiles is the file system of a running machine by absolute path, directories included.
type nodeFiles map[string]nodeFile

// schematicDir is where the factory's own extension has its one file, which is empty.
const schematicDir = "/usr/local/share/schematic/"

// files are what the API shows of the running system. Who gets them changes nothing.
func (b *boot) files() nodeFiles {
	t := maps.Clone(b.fixed())
	if b.etcdService() != nil {
		t[constants.EtcdDataPath] = nodeFile{mode: fs.ModeDir | 0o700}
		t.addDirectories(constants.EtcdDataPath)
		if b.m.etcdData() != nil {
			t[constants.EtcdDataPath+"/member"] = nodeFile{mode: fs.ModeDir | 0o700}
		}
	}
	if !b.m.uefi() {
		return t
	}
	if name := b.m.defaultEntry(loader{}); name != "" {
		t[loaderDefaultVar] = nodeFile{mode: 0o644, data: efiString(name)}
		t.addDirectories(loaderDefaultVar)
	}
	return t
}

// fixedFiles are some of the kernel's, the little that Talos itself has in
// /usr/local, and what the extensions brought.
func (b *boot) fixedFiles() nodeFiles {
	t := nodeFiles{}
	kernel := func(name string, content []byte) { t[name] = nodeFile{mode: 0o444, data: content, kernel: true} }
	kernel("/proc/sys/kernel/random/boot_id", []byte(b.id+"\n"))
	kernel("/proc/cmdline", []byte(b.med.image.Cmdline+"\n"))
	for _, dir := range []string{"/usr/lib/firmware", "/usr/local/lib/kubelet/credentialproviders", "/etc/ssl/certs"} {
		t[dir] = nodeFile{mode: fs.ModeDir | 0o755}
	}
	t["/usr/local/share/ca-certificates"] = nodeFile{mode: fs.ModeSymlink | 0o777, link: "/etc/ssl"}
	img := b.med.image
	if list := b.extensionsYAML(); list != nil {
		t[constants.ExtensionsRuntimeConfigFile] = nodeFile{mode: 0o644, data: list}
	}
	for _, e := range img.Extensions { // a later one lies over an earlier one: mountRootFS of Talos' init
		for name, content := range e.Files {
			t[name] = nodeFile{mode: 0o644, data: content}
		}
		for name, target := range e.Links {
			t[name] = nodeFile{mode: fs.ModeSymlink | 0o777, link: target}
		}
	}
	for name, content := range img.Loose { // what imager took out of the extensions; microcode is gone with the early archive
		if strings.HasPrefix(name, "/usr/lib/firmware/") {
			t[name] = nodeFile{mode: 0o644, data: content}
		}
	}
	if img.SchematicID != "" {
		t[schematicDir+img.SchematicID] = nodeFile{mode: 0o644}
	}
	t.addDirectories(slices.Collect(maps.Keys(t))...)
	return t
}

// addDirectories adds those that files lie in.
func (t nodeFiles) addDirectories(names ...string) {
	for _, name := range names {
		for dir := path.Dir(name); ; dir = path.Dir(dir) {
			t[dir] = nodeFile{mode: fs.ModeDir | 0o755}
			if dir == "/" {
				break
			}
		}
	}
}

// extensionsYAML is the list of extensions as imager wrote it; nil for an image without any.
func (b *boot) extensionsYAML() []byte {
	list := extensions.Config{Layers: layersOf(b.med.image)}
	if len(list.Layers) == 0 {
		return nil
	}
	text, err := yaml.Marshal(list)
	if err != nil {
		panic(err) // strings always marshal
	}
	return text
}

// follow resolves symbolic links anywhere in a path; false where there is nothing.
func (t nodeFiles) follow(name string) (string, bool) {
	const tooMany = 40
	for range tooMany {
		at, again := "/", false
		parts := strings.Split(strings.Trim(path.Clean("/"+name), "/"), "/")
		for i, part := range parts {
			at = path.Join(at, part)
			f, ok := t[at]
			if !ok {
				return "", false
			}
			if f.mode&fs.ModeSymlink == 0 {
				continue
			}
			target := f.link
			if !path.IsAbs(target) {
				target = path.Join(path.Dir(at), target)
			}
			name, again = path.Join(append([]string{target}, parts[i+1:]...)...), true
			break
		}
		if !again {
			return at, true
		}
	}
	return "", false
}

// root is where a walk begins: links are followed, what is missing is a plain error.
func (t nodeFiles) root(name string) (string, error) {
	at, ok := t.follow(name)
	if !ok {
		return "", status.Errorf(codes.Unknown, "lstat %s: no such file or directory", name)
	}
	return at, nil
}

// children are what is in a directory, in order.
func (t nodeFiles) children(dir string) []string {
	var out []string
	for name := range t {
		if name != dir && path.Dir(name) == dir {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}
