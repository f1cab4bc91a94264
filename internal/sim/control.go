package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ControlFile tells the commands that talk to a running lab where it is.
const ControlFile = "lab.json"

const controlPort = "7000"

type controlAddress struct {
	Control string `json:"control"` // URL
	Before  State  `json:"before"`  // when the lab came up
}

// Patch republishes an extension for each Talos version of the lab: same version, new
// digest. It returns the digest for Options.TalosVersion. Without restartFactory the
// factory keeps serving what it has cached.
func (l *Lab) Patch(ctx context.Context, extension string, restartFactory bool) (digest string, err error) {
	_, digest, err = l.Catalog.Patch(ctx, l.o.TalosVersion, extension)
	if err == nil && l.o.NextTalos != "" {
		_, _, err = l.Catalog.Patch(ctx, l.o.NextTalos, extension)
	}
	if err == nil && restartFactory {
		l.Factory.Restart()
	}
	return digest, err
}

// startControl serves the requests of recast lab's other commands.
func (l *Lab) startControl(ctx context.Context) error {
	mux := http.NewServeMux()
	handle := func(pattern string, do func(r *http.Request) (out string, err error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			out, err := do(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			fmt.Fprint(w, out)
		})
	}
	handle("POST /patch/{extension}", func(r *http.Request) (string, error) {
		digest, err := l.Patch(r.Context(), r.PathValue("extension"), r.URL.Query().Get("stale-factory") == "")
		return digest + "\n", err
	})
	handle("POST /pveum", func(r *http.Request) (string, error) { return l.Pveum(r.URL.Query()["arg"]) })
	handle("POST /shell/{node}", func(r *http.Request) (string, error) {
		out, err := l.Shell(r.PathValue("node")).Run(r.URL.Query()["arg"])
		if err != nil {
			return "", errors.New(shellMessage(err))
		}
		return out, nil
	})
	handle("POST /slow/{server}", func(r *http.Request) (string, error) {
		d, err := time.ParseDuration(r.URL.Query().Get("for"))
		if err != nil {
			return "", err
		}
		return "", l.Slow(r.PathValue("server"), d)
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(l.State()) // fails only if the client is gone
	})
	return l.serveHTTP(ctx, l.controlAddr(), mux)
}

func (l *Lab) controlAddr() string { return l.o.at(controlNumber, controlPort) }

// Announce writes the lab's control address into a working directory, for the commands
// that run there.
func (l *Lab) Announce(dir string) error {
	b, err := json.Marshal(controlAddress{Control: "http://" + l.controlAddr(), Before: l.State()})
	if err != nil {
		return fmt.Errorf("announce the lab: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, ControlFile), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("announce the lab: %w", err)
	}
	return nil
}

// AskPatch makes the running lab of a working directory republish an extension; see
// Lab.Patch.
func AskPatch(ctx context.Context, dir, extension string, restartFactory bool) (digest string, err error) {
	query := url.Values{}
	if !restartFactory {
		query.Set("stale-factory", "1")
	}
	answer, err := order(ctx, dir, "/patch/"+url.PathEscape(extension), query)
	return strings.TrimSpace(answer), err
}

// AskPveum runs a pveum command in the running lab of a working directory.
func AskPveum(ctx context.Context, dir string, args []string) (string, error) {
	return order(ctx, dir, "/pveum", url.Values{"arg": args})
}

// AskShell runs a command in the shell of one of the running lab's Proxmox nodes.
func AskShell(ctx context.Context, dir, node string, args []string) (string, error) {
	return order(ctx, dir, "/shell/"+url.PathEscape(node), url.Values{"arg": args})
}

// AskSlow stalls an API of the running lab; see Lab.Slow.
func AskSlow(ctx context.Context, dir, server string, d time.Duration) error {
	_, err := order(ctx, dir, "/slow/"+url.PathEscape(server), url.Values{"for": {d.String()}})
	return err
}

// order sends a command to the running lab of a working directory.
func order(ctx context.Context, dir, path string, query url.Values) (string, error) {
	at, err := findLab(dir)
	if err != nil {
		return "", err
	}
	answer, err := ask(ctx, http.MethodPost, at.Control+path+"?"+query.Encode())
	return string(answer), err
}

func findLab(dir string) (at controlAddress, err error) {
	b, err := os.ReadFile(filepath.Join(dir, ControlFile))
	if err != nil {
		return at, fmt.Errorf("find the lab: %w", err)
	}
	if err := json.Unmarshal(b, &at); err != nil {
		return at, fmt.Errorf("find the lab: %s: %w", ControlFile, err)
	}
	return at, nil
}

func ask(ctx context.Context, method, target string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the lab: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the lab: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("ask the lab: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(strings.TrimSpace(string(answer)))
	}
	return answer, nil
}
