package world

import (
	"regexp"
	"slices"
	"strings"
)

// The kinds of volumes that parse_volname of pve-storage knows.
const (
	imageKind    = "images"
	isoKind      = "iso"
	templateKind = "vztmpl"
	importKind   = "import"
	snippetKind  = "snippets"
)

var (
	imageName = regexp.MustCompile(`^(?:\d+/\S+/)?\d+/(?:vm-|base-|subvol-)\d+-[^/\s]+\.(raw|qcow2|vmdk|subvol)$`)
	imageDir  = regexp.MustCompile(`^\d+/(\S+)$`)
	fileNames = map[string]*regexp.Regexp{
		isoKind:      regexp.MustCompile(`^iso/[^/]+\.(?i:iso|img)$`),
		templateKind: regexp.MustCompile(`^vztmpl/[^/]+\.(?i:tar\.(?:gz|xz|zst|bz2))$`),
		snippetKind:  regexp.MustCompile(`^snippets/[^/]+$`),
	}
	importName = regexp.MustCompile(`^import/[ a-zA-Z0-9\-.+=_]+\.(ova|ovf|qcow2|raw|vmdk)$`)
)

// parseName is the kind and format of the volume with that name (parse_volname of the
// plugins).
func (s *storage) parseName(name string) (kind, format string, err error) {
	if s.block() {
		return s.parseBlockName(name)
	}
	if m := imageName.FindStringSubmatch(name); m != nil {
		return imageKind, m[1], nil
	}
	if m := imageDir.FindStringSubmatch(name); m != nil {
		return "", "", failf("unable to parse volume filename '%s'", m[1])
	}
	for kind, pattern := range fileNames {
		if pattern.MatchString(name) {
			return kind, "raw", nil
		}
	}
	if m := importName.FindStringSubmatch(name); m != nil {
		return importKind, m[1], nil
	}
	return "", "", failf("unable to parse directory volume name '%s'", name)
}

func (s *storage) parseBlockName(name string) (kind, format string, err error) {
	plugin, pattern := s.Type, `^(?:(?:base|basevol)-\d+-\S+/)?(?:base|vm)-\d+-\S+$`
	switch s.Type {
	case "lvm", "lvmthin":
		plugin, pattern = "lvm", `^(?:vm|base)-\d+-\S+$`
	case "zfs", "zfspool":
		plugin = "zfs"
	case "iscsi", "iscsidirect":
		return imageKind, "raw", nil // a LUN's name is up to its target
	}
	if !regexp.MustCompile(pattern).MatchString(name) {
		return "", "", failf("unable to parse %s volume name '%s'", plugin, name)
	}
	return imageKind, "raw", nil
}

// kindOf parses a volid.
func (w *World) kindOf(volid string) (s *storage, kind, format string, err error) {
	id, name, ok := strings.Cut(volid, ":")
	if !ok {
		return nil, "", "", failf("unable to parse volume ID '%s'", volid)
	}
	s, known := w.storages[id]
	if !known {
		return nil, "", "", failf("storage '%s' does not exist", id)
	}
	kind, format, err = s.parseName(name)
	return s, kind, format, err
}

// attachable says whether a volume can be a drive of a VM.
func attachable(kind string) bool { return kind == imageKind || kind == isoKind }

// isFileName says whether a volume is an ISO, a template or the like, which have no owner.
func isFileName(name string) bool {
	kind, _, _ := strings.Cut(name, "/")
	return slices.Contains([]string{isoKind, templateKind, importKind, snippetKind}, kind)
}
