package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// controlFile tells the commands that talk to a running lab where it is.
const controlFile = "lab.json"

const controlPort = "7000"

type controlAddress struct {
	Control string `json:"control"` // URL
}

// Patch publishes an extension anew: same version, new digest, which it
// returns. Without a restart the factory goes on with the old one.
func (l *Lab) Patch(ctx context.Context, extension string, restartFactory bool) (digest string, err error) {
	_, digest, err = l.Catalog.Patch(ctx, TalosVersion, extension)
	if err == nil && restartFactory {
		l.Factory.Restart()
	}
	return digest, err
}

// startControl serves what recast lab's other commands ask of a running lab.
func (l *Lab) startControl(context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /patch/{extension}", func(w http.ResponseWriter, r *http.Request) {
		digest, err := l.Patch(r.Context(), r.PathValue("extension"), r.URL.Query().Get("stale-factory") == "")
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintln(w, digest)
	})
	return l.serveHTTP(l.controlAddr(), mux)
}

func (l *Lab) controlAddr() string { return l.o.addr(254) + ":" + controlPort }

// Announce tells the commands run for that working directory that the lab is
// ready, and where.
func (l *Lab) Announce(dir string) error {
	b, err := json.Marshal(controlAddress{Control: "http://" + l.controlAddr()})
	if err != nil {
		return fmt.Errorf("announce the lab: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, controlFile), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("announce the lab: %w", err)
	}
	return nil
}

// Withdraw takes back what an earlier lab announced in that directory.
func Withdraw(dir string) error {
	if err := os.Remove(filepath.Join(dir, controlFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("withdraw the earlier lab: %w", err)
	}
	return nil
}

// AskPatch has the running lab of a working directory publish an extension anew.
func AskPatch(ctx context.Context, dir, extension string, restartFactory bool) (digest string, err error) {
	b, err := os.ReadFile(filepath.Join(dir, controlFile))
	if err != nil {
		return "", fmt.Errorf("find the lab: %w", err)
	}
	var at controlAddress
	if err := json.Unmarshal(b, &at); err != nil {
		return "", fmt.Errorf("find the lab: %s: %w", controlFile, err)
	}
	target := at.Control + "/patch/" + url.PathEscape(extension)
	if !restartFactory {
		target += "?stale-factory=1"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, nil)
	if err != nil {
		return "", fmt.Errorf("ask the lab: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask the lab: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	if err != nil {
		return "", fmt.Errorf("ask the lab: %w", err)
	}
	text := strings.TrimSpace(string(answer))
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(text)
	}
	return text, nil
}
