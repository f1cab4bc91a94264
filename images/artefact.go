package images

import (
	"context"
	"io"

	"github.com/recast-sh/recast/schematics"
)

// Artefact is a kind of file that machines boot and that a [Publisher] brings to
// Proxmox storage.
type Artefact int

// The kinds of Artefact. Proxmox keeps them as content of the types "iso" and
// "import", and knows them by the ends of their names.
const (
	BootISO Artefact = iota
	DiskImage
)

// String is what messages call one.
func (a Artefact) String() string {
	if a == DiskImage {
		return "disk image"
	}
	return "boot ISO"
}

// Plural is what messages call many.
func (a Artefact) Plural() string {
	if a == DiskImage {
		return "disk images"
	}
	return "ISOs"
}

// noun names it in step IDs and titles.
func (a Artefact) noun() string {
	if a == DiskImage {
		return "disk"
	}
	return "iso"
}

// Content is its content type on Proxmox storage.
func (a Artefact) Content() string {
	if a == DiskImage {
		return "import"
	}
	return "iso"
}

// since says which Proxmox VE has the content type, if not every one has; import came with
// pve-storage 8.2.8.
func (a Artefact) since() string {
	if a == DiskImage {
		return ", which needs Proxmox VE 8.3 and a storage of files"
	}
	return ""
}

// Setting is the key of the storages for it in recast.yaml.
func (a Artefact) Setting() string { return "images." + a.noun() + ".storage" }

// File is what a lock has of it; without SHA256 it was not built yet.
func (a Artefact) File(lock schematics.Lock, e schematics.Locked) schematics.BootFile {
	if a == BootISO {
		return e.ISO
	}
	if e.Disk == (schematics.Disk{}) {
		return schematics.BootFile{Name: lock.DiskName(e)}
	}
	return e.Disk.BootFile
}

// URL is where anyone can download it.
func (a Artefact) URL(f URLs, req ISORequest) string {
	if a == DiskImage {
		return f.DiskURL(req)
	}
	return f.ISOURL(req)
}

// download starts its download.
func (a Artefact) download(ctx context.Context, f Factory, req ISORequest, note func(text string)) (body io.ReadCloser, sizeBytes int64, err error) {
	if a == DiskImage {
		return f.Disk(ctx, req, note)
	}
	return f.ISO(ctx, req, note)
}

// output is what the imager calls it.
func (a Artefact) output() ImagerOutput {
	if a == DiskImage {
		return OutputDisk
	}
	return OutputISO
}

// Stored looks for a file of it on a storage.
func (a Artefact) Stored(ctx context.Context, s Finder, host, storage, name string) (sizeBytes int64, found bool, err error) {
	if a == DiskImage {
		return s.DiskImage(ctx, host, storage, name)
	}
	return s.ISO(ctx, host, storage, name)
}

// list lists the files of it on a storage.
func (a Artefact) list(ctx context.Context, s Shelf, host, storage string) ([]StoredISO, error) {
	if a == DiskImage {
		return s.DiskImages(ctx, host, storage)
	}
	return s.ISOs(ctx, host, storage)
}
