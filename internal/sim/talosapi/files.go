package talosapi

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/extensions"
	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The bytes of a file in one message (pkg/chunker/stream, NewChunker), and of a snapshot of etcd.
const (
	fileChunk     = 1024
	snapshotChunk = 32 << 10
)

// Read implements the API: it reads whole regular files and follows links. A missing file is NotFound; every other
// failure is a plain error, as in machined.
func (s *machineService) Read(req *machineapi.ReadRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	fsys := s.boot.files()
	at, ok := fsys.follow(req.GetPath())
	if !ok {
		return status.Errorf(codes.NotFound, "stat %s: no such file or directory", req.GetPath())
	}
	f := fsys[at]
	if !f.mode.IsRegular() {
		return status.Error(codes.Unknown, "path must be a regular file")
	}
	return sendFile(srv, f.data, fileChunk)
}

// Copy implements the API: a gzipped tar of a directory's content, or of one file.
func (s *machineService) Copy(req *machineapi.CopyRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	root := path.Clean(req.GetRootPath())
	if !path.IsAbs(root) {
		return status.Errorf(codes.Unknown, "path is not absolute %v", root)
	}
	fsys := s.boot.files()
	at, err := fsys.root(root)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	if err := fsys.pack(&packed, at); err != nil {
		return status.Error(codes.Unknown, err.Error())
	}
	return sendFile(srv, packed.Bytes(), fileChunk)
}

func sendFile(srv grpc.ServerStreamingServer[common.Data], content []byte, size int) error {
	for chunk := range slices.Chunk(content, size) {
		if err := srv.Send(&common.Data{Bytes: chunk}); err != nil {
			return err
		}
	}
	return nil
}

// List implements the API: the root first, then everything below it by name, each directory before its content.
func (s *machineService) List(req *machineapi.ListRequest, srv grpc.ServerStreamingServer[machineapi.FileInfo]) error {
	root := "/" + strings.TrimPrefix(strings.TrimSuffix(req.GetRoot(), "/"), "/")
	fsys := s.boot.files()
	at, err := fsys.root(root)
	if err != nil {
		return err
	}
	depth := 0
	if req.GetRecurse() {
		if depth = int(req.GetRecursionDepth()); depth == 0 {
			depth = -1
		}
	}
	return fsys.walk(at, depth, req.GetTypes(), func(name string, f nodeFile) error {
		return srv.Send(&machineapi.FileInfo{
			Name: name, RelativeName: relative(at, name, f), Size: f.size(), Mode: uint32(f.mode),
			Modified: imageTime, IsDir: f.mode.IsDir(), Link: f.link,
		})
	})
}

// imageTime is the modification time of every file: Talos' builds are reproducible and use the same time for all.
const imageTime = 1559424892

// relative returns a name relative to the root of a walk.
func relative(root, name string, f nodeFile) string {
	switch {
	case name != root:
		return strings.TrimPrefix(strings.TrimPrefix(name, root), "/")
	case f.mode.IsDir():
		return "."
	}
	return path.Base(name)
}

// walk visits at and everything below it, at most depth levels deep; a negative depth is no limit. As in machined's
// walker, a directory of an unwanted type is entered at any depth (pkg/archiver, Walker).
func (t nodeFiles) walk(at string, depth int, types []machineapi.ListRequest_Type, visit func(string, nodeFile) error) error {
	var into func(name string) error
	into = func(name string) error {
		f := t[name]
		wanted := len(types) == 0 || f.isOf(types)
		if wanted {
			if err := visit(name, f); err != nil {
				return err
			}
		}
		levels := strings.Count(name, "/") - strings.Count(at, "/")
		if !f.mode.IsDir() || wanted && name != at && depth >= 0 && levels >= depth {
			return nil
		}
		for _, child := range t.children(name) {
			if err := into(child); err != nil {
				return err
			}
		}
		return nil
	}
	return into(at)
}

func (f nodeFile) isOf(types []machineapi.ListRequest_Type) bool {
	for _, t := range types {
		switch {
		case t == machineapi.ListRequest_REGULAR && f.mode.IsRegular(),
			t == machineapi.ListRequest_DIRECTORY && f.mode.IsDir(),
			t == machineapi.ListRequest_SYMLINK && f.mode&fs.ModeSymlink != 0:
			return true
		}
	}
	return false
}

// pack writes the content of at, or at itself if it is a file.
func (t nodeFiles) pack(w *bytes.Buffer, at string) error {
	z := gzip.NewWriter(w)
	archive := tar.NewWriter(z)
	err := t.walk(at, -1, nil, func(name string, f nodeFile) error {
		if name == at && f.mode.IsDir() {
			return nil
		}
		h := &tar.Header{Name: relative(at, name, f), Mode: int64(f.mode.Perm()), Typeflag: tar.TypeReg, Size: int64(len(f.data))}
		switch {
		case f.mode.IsDir():
			h.Typeflag, h.Name, h.Size = tar.TypeDir, h.Name+"/", 0
		case f.mode&fs.ModeSymlink != 0:
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, f.link, 0
		}
		if err := archive.WriteHeader(h); err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
		if _, err := archive.Write(f.data); err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return z.Close()
}

// nodeFile is one file of a running system.
type nodeFile struct {
	mode   fs.FileMode
	data   []byte // of a regular file
	link   string // target of a symbolic link
	kernel bool   // generated by the kernel when read: its size is 0
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

// schematicDir is where the factory's own extension has its single, empty file.
const schematicDir = "/usr/local/share/schematic/"

// files returns the running system's files as the API shows them. Callers must not change them.
func (b *boot) files() nodeFiles {
	t := maps.Clone(b.fixed())
	b.mu.Lock()
	if b.cfg != nil {
		t.addNames(machineID(b.nodeID))
	}
	b.mu.Unlock()
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

// fixedFiles returns some of the kernel's files, Talos' own few files in /usr/local, and the extensions' files.
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
	for _, e := range img.Extensions { // a later extension overrides an earlier one: mountRootFS of Talos' init
		for name, content := range e.Files {
			t[name] = nodeFile{mode: 0o644, data: content}
		}
		for name, target := range e.Links {
			t[name] = nodeFile{mode: fs.ModeSymlink | 0o777, link: target}
		}
	}
	for name, content := range img.Loose { // files that imager took out of the extensions; microcode is lost with the early archive
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

// addDirectories adds the parent directories of files.
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

// extensionsYAML returns imager's list of extensions; nil for an image without extensions.
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

// follow resolves symbolic links anywhere in a path; it returns false for a missing file.
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

// root returns the start of a walk: links are followed, a missing file is a plain error.
func (t nodeFiles) root(name string) (string, error) {
	at, ok := t.follow(name)
	if !ok {
		return "", status.Errorf(codes.Unknown, "lstat %s: no such file or directory", name)
	}
	return at, nil
}

// children returns the names in a directory, in order.
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

// machineID returns the ID that Talos makes of a node's identity: each new STATE has another machine ID
// (ConvertMachineID in adapters/cluster/identity.go, which takes the first bytes of an ID; the IDs of the lab may
// begin alike).
func machineID(nodeID string) string {
	sum := sha256.Sum256([]byte(nodeID))
	return hex.EncodeToString(sum[:16])
}

// addNames adds the files with the names that follow from a machine-id: node_identity.go, iqn.go and nqn.go in
// Talos' controllers.
func (t nodeFiles) addNames(id string) {
	hex := hex.EncodeToString([]byte(id[:16]))
	host := fmt.Sprintf("%s-%s-%s-%s-%s", hex[:8], hex[8:12], hex[12:16], hex[16:20], hex[20:])
	for name, content := range map[string]string{
		"/etc/machine-id": id, "/etc/iscsi/initiatorname.iscsi": "InitiatorName=iqn.2017-11.dev.talos:" + id + "\n",
		"/etc/nvme/hostid": host, "/etc/nvme/hostnqn": "nqn.2017-11.dev.talos:uuid:" + host,
	} {
		t[name] = nodeFile{mode: 0o600, data: []byte(content)}
		t.addDirectories(name)
	}
}
