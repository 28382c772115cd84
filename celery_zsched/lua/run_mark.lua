-- run_mark: note that runs of entries are outstanding, or still are.
-- KEYS: runs lapses
-- ARGV: holder, then four per run: entry, id, state, until
--   state  sending   a scheduler is about to send it; a run that has begun, or was the last to end, stays as it is
--          sent      it was sent; only what is 'sending' still becomes that, for it may have begun or be over by now
--          running   a worker has begun it
--          renewed   a worker is still at it; a run that is not known is not made anew
--          waiting   its worker has given it back to wait for a retry
--          missing   its message is in no queue: somebody has it who will say so by 'until', or it is gone; only what
--                    is 'sent' and would count for longer is cut short
--   until  '+N' for N microseconds from now, otherwise the moment itself
-- RETURNS: the ids of runs that were to be renewed and are not known
-- RULES: 2, 7 (what has lapsed goes)
-- @flags allow-oom
local runs, lapses = KEYS[1], KEYS[2]
local holder = ARGV[1]
local WIDTH = 4
-- @include clock runs lapses

local function find(found, id)
  for _, run in ipairs(found) do
    if run.id == id then
      return run
    end
  end
  return nil
end

-- The state that a run gets; nil if it stays as it is.
local function becomes(run, state)
  if state == 'sending' then
    return not (run and run.state ~= 'sending') and state or nil
  elseif state == 'sent' then
    return run and run.state == 'sending' and state or nil
  elseif state == 'renewed' then
    return run and run.state ~= 'over' and 'running' or nil
  end
  return state == 'waiting' and 'sent' or state
end

sweep()
local unknown = {}
for at = 2, #ARGV, WIDTH do
  local entry, id, asked, till = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local found = read_runs(entry)
  local run = find(found, id)
  local ends = string.sub(till, 1, 1) == '+' and now + tonumber(string.sub(till, 2)) or tonumber(till)
  local state = becomes(run, asked)
  if asked == 'missing' then
    if run and run.state == 'sent' and run.till > ends then
      run.till = ends
      write_runs(entry, found)
    end
  elseif state then
    if not run then
      run = {id = id}
      found[#found + 1] = run
    end
    if run.state ~= state then
      run.since = stamp(now)
    end
    run.state, run.holder, run.till = state, holder, ends
    write_runs(entry, found)
  elseif asked == 'renewed' then
    unknown[#unknown + 1] = id
  end
end
return unknown
