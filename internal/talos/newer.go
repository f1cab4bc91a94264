package talos

import (
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"golang.org/x/mod/semver"
)

// NewestRelease returns the newest of some versions that is no pre-release, "" if none is.
func NewestRelease(versions []string) string {
	newest := ""
	for _, v := range versions {
		if semver.IsValid(v) && semver.Prerelease(v) == "" && semver.Compare(v, newest) > 0 {
			newest = v
		}
	}
	return newest
}

// NextKubernetes returns the first release of the minor version after that of kubernetes, if a Talos
// supports it. "": it does not, or a version is not known. Kubernetes is upgraded one minor version at a time.
func NextKubernetes(talos, kubernetes string) string {
	var minor int
	if _, err := fmt.Sscanf(semver.MajorMinor(kubernetes), "v1.%d", &minor); err != nil {
		return ""
	}
	next := fmt.Sprintf("1.%d.0", minor+1)
	k, err := compatibility.ParseKubernetesVersion(next)
	t := version(talos)
	if err != nil || t == nil || k.SupportedWith(t) != nil {
		return ""
	}
	return "v" + next
}
