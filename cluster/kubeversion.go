package cluster

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// Version is a version of Kubernetes, or of Talos, which counts alike.
type Version struct {
	Major, Minor, patch int
	pre                 string // "rc.0"; "": it is a release
}

var kubeVersionPattern = regexp.MustCompile(`^v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?$`)

// ParseVersion reads "v1.35.4", with or without the letter.
func ParseVersion(s string) (Version, error) {
	m := kubeVersionPattern.FindStringSubmatch(s)
	if m == nil {
		return Version{}, fmt.Errorf("%q is no version of Kubernetes: write it like v1.35.4", s)
	}
	number := func(i int) int { n, _ := strconv.Atoi(m[i]); return n } // digits, and few of them
	return Version{number(1), number(2), number(3), m[4]}, nil
}

// upstreamPre is what a version of Kubernetes itself has before its release. What
// else stands there, a vendor has added, and counts up by rules of its own.
var upstreamPre = regexp.MustCompile(`^(alpha|beta|rc)\.\d+$`)

// ofVendor says whether it is a version that Kubernetes itself never had.
func (v Version) ofVendor() bool { return v.pre != "" && !upstreamPre.MatchString(v.pre) }

// CheckKubernetesVersion finds out whether that is a version of Kubernetes itself.
func CheckKubernetesVersion(s string) error {
	v, err := ParseVersion(s)
	if err == nil && (v.ofVendor() || strings.Contains(s, "+")) {
		err = fmt.Errorf("%q is a vendor's own version: recast goes to those of Kubernetes itself, such as %s or v1.36.0-rc.1", s, v.MinorVersion()+".0")
	}
	return fault.As(fault.Config, err)
}

func (v Version) String() string {
	s := fmt.Sprintf("v%d.%d.%d", v.Major, v.Minor, v.patch)
	if v.pre != "" {
		s += "-" + v.pre
	}
	return s
}

// MinorVersion is the version without its patch: "v1.35".
func (v Version) MinorVersion() string { return fmt.Sprintf("v%d.%d", v.Major, v.Minor) }

func (v Version) Compare(o Version) int {
	return cmp.Or(cmp.Compare(v.Major, o.Major), cmp.Compare(v.Minor, o.Minor), cmp.Compare(v.patch, o.patch), comparePre(v.pre, o.pre))
}

func (v Version) Before(o Version) bool { return v.Compare(o) < 0 }

// comparePre puts a release after what came before it, as https://semver.org does.
func comparePre(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == "":
		return 1
	case b == "":
		return -1
	}
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		x, errX := strconv.Atoi(as[i])
		y, errY := strconv.Atoi(bs[i])
		switch {
		case as[i] == bs[i]:
		case errX == nil && errY == nil:
			return cmp.Compare(x, y)
		case errX == nil:
			return -1 // numbers come before words
		case errY == nil:
			return 1
		default:
			return cmp.Compare(as[i], bs[i])
		}
	}
	return cmp.Compare(len(as), len(bs))
}
