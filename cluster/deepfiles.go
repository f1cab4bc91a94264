package cluster

import (
	"strings"
)

func (e LockedExtension) Title() string { return strings.TrimSpace(e.Name + " " + e.Version) }
