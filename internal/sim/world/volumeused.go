package world

import (
	"path"
	"strings"
)

// allocated is the space that a volume takes, as volume_size_info of the plugins reports
// it: LVM reports nothing, files and zvols are sparse.
func (s *storage) allocated(v *volume) int64 {
	switch {
	case s.Type == "lvm", s.Type == "lvmthin":
		return 0
	case v.content != imageKind:
		return v.size
	}
	return v.filled()
}

const firstBlock = 4 << 10 // allocated by qemu-img even for an empty image

// filled is the number of bytes written to an image.
func (v *volume) filled() int64 {
	return min(v.size, max(roundUp(v.media.Size(), firstBlock), v.written, firstBlock))
}

// parentOf is a linked clone's base as list_images reports it.
func (s *storage) parentOf(name string) string {
	base := strings.TrimSuffix(basePath(name), "/")
	switch {
	case base == "":
		return ""
	case s.block():
		return base + "@__base__"
	}
	return "../" + path.Dir(base) + "/" + path.Base(base)
}

// ListsUsed says whether the content listing of a storage includes allocated sizes, as for
// directories (list_images in Storage/Plugin.pm).
func (w *World) ListsUsed(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.storages[id]
	return ok && s.Path() != ""
}
