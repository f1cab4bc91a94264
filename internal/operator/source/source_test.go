package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/recast-sh/recast/api/v1alpha1"
	"github.com/recast-sh/recast/internal/sim/must"
)

var wanted = map[string]string{"recast.yaml": "version: 1\n", "schematics/base.yaml": "customization: {}\n"}

// wantedHash is that of the files, wherever they come from.
const wantedHash = "sha256:3997f7c8d4e09ff389c26e88eebc03331223383874060d0677acb6df362f018e"

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for file, text := range files {
		file = filepath.Join(dir, file)
		must.Do(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must.Do(t, os.WriteFile(file, []byte(text), 0o600))
	}
}

func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	must.Do(t, filepath.WalkDir(dir, func(file string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s can't be run: %v", file, err)
		}
		b, err := os.ReadFile(file)
		rel, _ := filepath.Rel(dir, file)
		files[filepath.ToSlash(rel)] = string(b)
		return err
	}))
	return files
}

// TestConfigMap reads a volume as the kubelet makes it: names are links to a directory of this version.
func TestConfigMap(t *testing.T) {
	t.Parallel()
	fetch := func(files map[string]string) (map[string]string, string, error) {
		volume, into := t.TempDir(), t.TempDir()
		write(t, filepath.Join(volume, "..2026"), files)
		for file := range files {
			must.Do(t, os.Symlink(filepath.Join("..2026", file), filepath.Join(volume, file)))
		}
		revision, hash, err := Fetch(t.Context(), v1alpha1.Source{ConfigMap: &v1alpha1.ConfigMapSource{Name: "a"}}, volume, "", into)
		must.Hold(t, err != nil || hash == revision, "the hash is %s, the revision %s", hash, revision)
		return read(t, into), revision, err
	}
	got, revision, err := fetch(map[string]string{"recast.yaml": "version: 1\n", "schematics__base.yaml": "customization: {}\n"})
	must.Be(t, err == nil && revision == wantedHash, "revision %q: %v", revision, err)
	must.Equal(t, "files", wanted, got)
	if _, other, err := fetch(map[string]string{"recast.yaml": "version: 1\n", "schematics__base.yaml": "customization: {} # changed\n"}); err != nil || other == revision {
		t.Errorf("other files have the same revision %q: %v", other, err)
	}
	if _, _, err := fetch(map[string]string{"base.yaml": ""}); err == nil || err.Error() != "ConfigMap a has no recast.yaml, only base.yaml" {
		t.Errorf("without recast.yaml: %v", err)
	}
	if _, _, err := fetch(map[string]string{"..__recast.yaml": ""}); err == nil {
		t.Error("a file is outside of the directory")
	}
}

// TestMain has the system trust the certificate of httptest's servers.
func TestMain(m *testing.M) {
	server := httptest.NewTLSServer(nil)
	server.Close()
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "")
		if err == nil {
			defer os.RemoveAll(dir)
			file := filepath.Join(dir, "ca.crt")
			err = os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600)
			err = errors.Join(err, os.Setenv("SSL_CERT_FILE", file))
		}
		if err != nil {
			panic(err)
		}
		return m.Run()
	}())
}

// TestGit fetches from Git's own server.
func TestGit(t *testing.T) {
	t.Parallel()
	backend := filepath.Join(runGit(t, "", "--exec-path"), "git-http-backend")
	repos := t.TempDir()
	repo := filepath.Join(repos, "clusters")
	runGit(t, "", "init", "--quiet", "--initial-branch=main", repo)
	write(t, filepath.Join(repo, "prod"), wanted)
	write(t, repo, map[string]string{"README.md": "clusters"})
	runGit(t, repo, "add", ".")
	runGit(t, repo, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "-m", "first")
	first := runGit(t, repo, "rev-parse", "HEAD")
	runGit(t, repo, "-c", "user.name=a", "-c", "user.email=a@example.com", "tag", "-a", "v1", "-m", "one")
	write(t, filepath.Join(repo, "prod"), map[string]string{"recast.yaml": "version: 2\n"})
	runGit(t, repo, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "-am", "second")
	handler := &cgi.Handler{Path: backend, Env: []string{"GIT_PROJECT_ROOT=" + repos, "GIT_HTTP_EXPORT_ALL=1"}}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "flux" || password != "secret" {
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	credentials := t.TempDir()
	write(t, credentials, map[string]string{"username": "flux", "password": "secret\n"})
	cases := map[string]struct {
		ref, path, secret string
		says              string // in the error
		version           string
	}{
		"branch":      {"main", "prod", credentials, "", "version: 2\n"},
		"tag":         {"v1", "/prod/", credentials, "", "version: 1\n"},
		"commit":      {first, "prod", credentials, "", "version: 1\n"},
		"no such ref": {"next", "prod", credentials, `has no branch and no tag "next"`, ""},
		"no path":     {"main", "", credentials, "has no recast.yaml, only README.md, prod/recast.yaml", ""},
		"other path":  {"main", "stage", credentials, "has no directory stage", ""},
		"no secret":   {"main", "prod", "", "authentication required", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			into := t.TempDir()
			revision, hash, err := Fetch(t.Context(), v1alpha1.Source{Git: &v1alpha1.GitSource{URL: server.URL + "/clusters", Ref: c.ref, Path: c.path}}, "", c.secret, into)
			if c.says != "" {
				must.Contain(t, "error", fmt.Sprint(err), c.says)
				return
			}
			got := read(t, into)["recast.yaml"]
			must.Hold(t, err == nil && got == c.version, "recast.yaml is %q: %v", got, err)
			must.Hold(t, c.version != "version: 1\n" || revision == first, "revision %s, want %s", revision, first)
			same := hash == wantedHash
			must.Hold(t, same == (c.version == "version: 1\n"), "hash of the files: %s", hash)
		})
	}
	plain := httptest.NewServer(server.Config.Handler)
	t.Cleanup(plain.Close)
	pinned := v1alpha1.GitSource{URL: plain.URL + "/clusters", Ref: first, Path: "prod", Insecure: true}
	revision, hash, err := Fetch(t.Context(), v1alpha1.Source{Git: &pinned}, "", credentials, t.TempDir())
	must.Hold(t, err == nil && revision == first && hash == wantedHash, "by http: revision %s, hash of the files %s: %v", revision, hash, err)
}

func runGit(t *testing.T, dir string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "git", args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := c.CombinedOutput()
	must.Be(t, err == nil, "git %s: %v\n%s", strings.Join(args, " "), err, out)
	return strings.TrimSpace(string(out))
}

// TestOCI pulls an artifact as flux push artifact makes it.
func TestOCI(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(registry.New())
	t.Cleanup(server.Close)
	var archive bytes.Buffer
	zip := gzip.NewWriter(&archive)
	files := tar.NewWriter(zip)
	for file, text := range map[string]string{"./prod/recast.yaml": "version: 1\n", "prod/schematics/base.yaml": "customization: {}\n", "README.md": "x"} {
		must.Do(t, files.WriteHeader(&tar.Header{Name: file, Mode: 0o644, Size: int64(len(text))}))
		must.Get(files.Write([]byte(text)))(t)
	}
	must.Do(t, files.WriteHeader(&tar.Header{Name: "prod/link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}))
	must.Do(t, files.Close())
	must.Do(t, zip.Close())
	img := must.Get(mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), static.NewLayer(archive.Bytes(), fluxLayer)))(t)
	host := strings.TrimPrefix(server.URL, "http://")
	ref := must.Get(name.ParseReference(host + "/clusters:latest"))(t)
	must.Do(t, remote.Write(ref, img, remote.WithContext(t.Context())))
	digest := must.Get(img.Digest())(t)
	into := t.TempDir()
	revision, hash, err := Fetch(t.Context(), v1alpha1.Source{OCI: &v1alpha1.OCISource{Reference: ref.String(), Path: "prod"}}, "", "", into)
	must.Be(t, err == nil && revision == digest.String() && hash == wantedHash,
		"revision %s, want %s; hash of the files %s: %v", revision, digest, hash, err)
	must.Equal(t, "files", wanted, read(t, into))
	// go-containerregistry would send the login to such an address by http, when https fails.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, _, err = Fetch(ctx, v1alpha1.Source{OCI: &v1alpha1.OCISource{Reference: "10.255.255.1:5000/clusters:latest"}}, "", "", t.TempDir())
	must.Hold(t, err != nil && strings.Contains(err.Error(), "without TLS: set spec.source.oci.insecure"), "%v", err)
}

// TestRefused: an attacker on the way answers plain http, and errors are read by more people than URLs with a password should be.
func TestRefused(t *testing.T) {
	t.Parallel()
	const commit, digest = "0123456789abcdef0123456789abcdef01234567", "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	git := func(url, ref string, insecure bool) v1alpha1.Source {
		return v1alpha1.Source{Git: &v1alpha1.GitSource{URL: url, Ref: ref, Insecure: insecure}}
	}
	oci := func(reference string, insecure bool) v1alpha1.Source {
		return v1alpha1.Source{OCI: &v1alpha1.OCISource{Reference: reference, Insecure: insecure}}
	}
	const clear, credentials = "without TLS", "has a user or a password"
	cases := map[string]struct {
		src  v1alpha1.Source
		says string // "": it is not refused
	}{
		"http":                          {git("http://git.example/a", "main", false), clear},
		"http, a commit":                {git("http://git.example/a", commit, false), clear},
		"http, insecure, a branch":      {git("http://git.example/a", "main", true), clear},
		"http, insecure, a short hash":  {git("http://git.example/a", commit[:12], true), clear},
		"http, insecure, a commit":      {git("http://git.example/a", commit, true), ""},
		"https":                         {git("https://git.example/a", "main", false), ""},
		"https, a password":             {git("https://flux:hunter2@git.example/a", "main", false), credentials},
		"https, a token":                {git("https://hunter2@git.example/a", "main", false), credentials},
		"http, insecure, and a token":   {git("http://hunter2@git.example/a", commit, true), credentials},
		"ssh":                           {git("ssh://git@git.example/a", "main", false), ""},
		"ssh, a password":               {git("ssh://git:hunter2@git.example/a", "main", false), credentials},
		"capitals":                      {git("HTTP://git.example/a", "main", false), clear},
		"git":                           {git("git://git.example/hunter2", "main", false), "https or ssh"},
		"a file":                        {git("/etc/hunter2", "main", false), "https or ssh"},
		"no URL":                        {git("https://flux:hunter2@git.example:a/b", "main", false), "https or ssh"},
		"OCI":                           {oci("registry.example/a:latest", false), ""},
		"OCI, insecure":                 {oci("registry.example/a:latest", true), clear},
		"OCI, insecure, a digest":       {oci("registry.example/a"+digest, true), ""},
		"OCI, a password":               {oci("flux:hunter2@registry.example/a:latest", false), credentials},
		"OCI, a password and a digest":  {oci("flux:hunter2@registry.example/a"+digest, false), credentials},
		"OCI, insecure, and a password": {oci("hunter2@registry.example/a"+digest, true), credentials},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := Check(c.src)
			must.Hold(t, (err == nil) == (c.says == "") && strings.Contains(fmt.Sprint(err), c.says), "%v", err)
			must.Hold(t, !strings.Contains(fmt.Sprint(err), "hunter2"), "the error tells the secret: %v", err)
			if c.says != "" {
				_, _, fetched := Fetch(t.Context(), c.src, "", "", t.TempDir())
				must.Equal(t, "Fetch", fmt.Sprint(err), fmt.Sprint(fetched))
			}
		})
	}
}
