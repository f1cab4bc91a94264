package cluster

import (
	"strconv"
	"strings"
)

// Begun says whether a mark is of the same upgrade within the same boot.
func (m Mark) Begun(now Mark) bool {
	return m.Strategy == now.Strategy && m.Build == now.Build && m.BootID == now.BootID
}

// InstallsApart says whether the machine's Talos has an API that installs
// without a reboot (LifecycleService, since 1.13).
func (m Machine) InstallsApart() bool {
	major, minor, _ := strings.Cut(strings.TrimPrefix(m.TalosVersion, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	number, err := strconv.Atoi(minor)
	return major == "1" && err == nil && number >= 13
}
