package talosapi

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fileChunk is the number of bytes of a file in one message: machined's chunker has
// buffers of that size (pkg/chunker/stream, NewChunker).
const fileChunk = 1024

// Read implements the API: whole regular files, links followed. A missing file is
// NotFound, all else a plain error, as in machined.
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
	return sendFile(srv, f.data)
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
	return sendFile(srv, packed.Bytes())
}

func sendFile(srv grpc.ServerStreamingServer[common.Data], content []byte) error {
	for len(content) > 0 {
		n := min(len(content), fileChunk)
		if err := srv.Send(&common.Data{Bytes: content[:n]}); err != nil {
			return err
		}
		content = content[n:]
	}
	return nil
}

// List implements the API: the root first, then everything below it by name, each
// directory before its content.
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

// imageTime is the modification time of every file: Talos' builds are reproducible and use
// the same time for all.
const imageTime = 1559424892

// relative is a name relative to the root of a walk.
func relative(root, name string, f nodeFile) string {
	switch {
	case name != root:
		return strings.TrimPrefix(strings.TrimPrefix(name, root), "/")
	case f.mode.IsDir():
		return "."
	}
	return path.Base(name)
}

// walk visits at and everything below it, at most depth levels deep; a negative depth is
// no limit. As in machined's walker, a directory of an unwanted type is entered however
// deep it is (pkg/archiver, Walker).
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
