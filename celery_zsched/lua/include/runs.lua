-- runs: one field of the runs hash, the outstanding runs of an entry: lines of 'until state id since holder'.
-- until   when the run stops counting unless somebody renews it; since: the moment of its state
-- state   sending (a scheduler is at it), sent (it waits, or waits for its retry), running (a worker has a lease on it);
--         not outstanding: over (the last one that ended, so that a second sending of it is known for one), wanted (the
--         entry is to be due when its last run ends)

local function read_runs(entry)
  local found, text = {}, call('HGET', runs, entry)
  if not text then
    return found
  end
  for line in string.gmatch(text, '[^\n]+') do
    local till, state, id, since, holder = string.match(line, '^(%d+) (%a+) (%S+) (%d+) (.*)$')
    if till and tonumber(till) > now then
      found[#found + 1] = {till = tonumber(till), state = state, id = id, since = since, holder = holder}
    end
  end
  return found
end

local function is_outstanding(run)
  return run.state ~= 'wanted' and run.state ~= 'over'
end

-- The latest moment up to which a run is outstanding; nil when there is none.
local function last_run(found)
  local last
  for _, run in ipairs(found) do
    if is_outstanding(run) then
      last = math.max(last or 0, run.till)
    end
  end
  return last
end
