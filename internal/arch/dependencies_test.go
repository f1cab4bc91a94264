package arch

import (
	"os"
	"testing"

	"golang.org/x/mod/modfile"
	gomod "golang.org/x/mod/module"
	versions "golang.org/x/mod/semver"
)

const noRelease = "it has no release"

// commits are the dependencies that are a commit and not a release, and why.
var commits = map[string][]string{
	noRelease: {
		"github.com/Azure/go-ansiterm", "github.com/charmbracelet/ultraviolet", "github.com/exponent-io/jsonpath", "github.com/golang/groupcache",
		"github.com/jbenet/go-context", "github.com/liggitt/tabwriter", "github.com/modern-go/concurrent", "github.com/monochromegane/go-gitignore",
		"github.com/munnerz/goautoneg", "github.com/petermattis/goid", "github.com/pkg/browser", "github.com/xo/terminfo", "golang.org/x/exp",
		"google.golang.org/genproto/googleapis/api", "google.golang.org/genproto/googleapis/rpc", "k8s.io/kube-openapi", "k8s.io/utils", "sigs.k8s.io/json",
	},
	"Kubernetes requires that commit": {
		"github.com/davecgh/go-spew", "github.com/gorilla/websocket", "github.com/modern-go/reflect2", "github.com/pmezard/go-difflib",
	},
	"the Image Factory requires that commit": {"github.com/jsimonetti/rtnetlink/v2", "github.com/Microsoft/go-winio"},
	"Talos requires that commit":             {"github.com/planetscale/vtprotobuf"},
	"go-git requires that commit":            {"github.com/go-git/gcfg"},
}

// TestNoReleaseCandidates: recast is made of releases. Nobody tests a candidate any more once its release is there.
func TestNoReleaseCandidates(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	f, err := modfile.Parse("go.mod", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	why := map[string]string{}
	for reason, paths := range commits {
		for _, path := range paths {
			why[path] = reason
		}
	}
	for _, r := range f.Require {
		reason, path := why[r.Mod.Path], r.Mod.Path
		if !gomod.IsPseudoVersion(r.Mod.Version) {
			if versions.Prerelease(r.Mod.Version) != "" {
				t.Errorf("%s is no release", r.Mod)
			}
			continue
		}
		delete(why, path)
		switch base, err := gomod.PseudoVersionBase(r.Mod.Version); {
		case err != nil:
			t.Error(err)
		case reason == "":
			t.Errorf("%s is a commit: use a release, or say here why not", r.Mod)
		case reason == noRelease && base != "":
			t.Errorf("%s has a release, %s", r.Mod, base)
		}
	}
	for path := range why {
		t.Errorf("%s is a release by now, or no dependency: remove it here", path)
	}
}
