package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// stopGrace is how long a daemon may take to end when asked.
const stopGrace = 5 * time.Second

// A Server is the http.Handler that runs in the node.
type Server struct {
	mux     *http.ServeMux
	mu      sync.Mutex
	daemons map[string]*daemon
}

type daemon struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// NewServer returns a server without daemons.
func NewServer() *Server {
	s := &Server{mux: http.NewServeMux(), daemons: make(map[string]*daemon)}
	s.mux.HandleFunc("GET /ready", func(http.ResponseWriter, *http.Request) {})
	s.mux.HandleFunc("POST /run", s.run)
	s.mux.HandleFunc("POST /signal", signal)
	s.mux.HandleFunc("POST /daemons", s.start)
	s.mux.HandleFunc("DELETE /daemons/{name}", s.stop)
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	var c Command
	if err := json.NewDecoder(r.Body).Decode(&c); err != nil || len(c.Args) == 0 {
		http.Error(w, fmt.Sprintf("no command in the request: %v", err), http.StatusBadRequest)
		return
	}
	w.Header().Set("Trailer", exitCode)
	cmd := exec.CommandContext(r.Context(), c.Args[0], c.Args[1:]...)
	out := &flushing{w: w, rc: http.NewResponseController(w)}
	cmd.Stdout, cmd.Stderr = out, out
	if c.Stdin != "" {
		in, err := cmd.StdinPipe()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		go func() {
			_, _ = io.WriteString(in, c.Stdin) // a program may end without reading it all
			in.Close()
		}()
	}
	code := 0
	if err := cmd.Run(); err != nil {
		code = -1
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			code = exit.ExitCode()
		} else {
			fmt.Fprintln(out, err)
		}
	}
	w.Header().Set(exitCode, strconv.Itoa(code))
}

func signal(w http.ResponseWriter, r *http.Request) {
	var s Signal
	// Process 1 and groups (negative) are nobody's business.
	if err := json.NewDecoder(r.Body).Decode(&s); err != nil || s.Pid <= 1 {
		http.Error(w, fmt.Sprintf("no process in the request: %v", err), http.StatusBadRequest)
		return
	}
	now := time.Now()
	if err := syscall.Kill(s.Pid, syscall.Signal(s.Signal)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(Sent{UnixNano: now.UnixNano()}) // a client that went away does not matter
}

func (s *Server) start(w http.ResponseWriter, r *http.Request) {
	var d Daemon
	if err := json.NewDecoder(r.Body).Decode(&d); err != nil || d.Name == "" || len(d.Args) == 0 {
		http.Error(w, fmt.Sprintf("no daemon in the request: %v", err), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopLocked(d.Name)
	log, err := os.OpenFile(d.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer log.Close()
	cmd := exec.Command(d.Args[0], d.Args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	run := &daemon{cmd: cmd, done: make(chan struct{})}
	s.daemons[d.Name] = run
	go func() {
		err := cmd.Wait()
		fmt.Fprintf(os.Stdout, "%s has ended: %v\n", d.Name, err)
		close(run.done)
	}()
}

func (s *Server) stop(_ http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopLocked(r.PathValue("name"))
}

// stopLocked ends a daemon; one that does not exist has ended.
func (s *Server) stopLocked(name string) {
	d := s.daemons[name]
	if d == nil {
		return
	}
	delete(s.daemons, name)
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
	select {
	case <-d.done:
	case <-time.After(stopGrace):
		_ = d.cmd.Process.Kill()
		<-d.done
	}
}

// flushing sends every write at once: a test waits for single lines of long-running commands.
type flushing struct {
	w  io.Writer
	rc *http.ResponseController
}

func (f *flushing) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err != nil {
		return n, err
	}
	return n, f.rc.Flush()
}
