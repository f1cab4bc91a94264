package world

import (
	"path"
	"strings"
)

// allocated is what a volume takes of its storage, as volume_size_info of the
// plugins tells it: LVM says nothing, files and zvols have holes.
func (s *storage) allocated(v *volume) int64 {
	switch {
	case s.Type == "lvm", s.Type == "lvmthin":
		return 0
	case v.content != imageKind:
		return v.size
	}
	return v.filled()
}

const firstBlock = 4 << 10 // qemu-img allocates it, of an empty image too

// filled is what of an image was written so far.
func (v *volume) filled() int64 {
	return min(v.size, max(roundUp(v.media.Size(), firstBlock), v.written, firstBlock))
}

// parentOf is what list_images says of a linked clone's base.
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

// ListsUsed says that the content listing of a storage has figures of what is
// allocated, as the one of directories does (list_images in Storage/Plugin.pm).
func (w *World) ListsUsed(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.storages[id]
	return ok && s.Path() != ""
}
