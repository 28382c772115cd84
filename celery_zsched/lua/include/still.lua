-- still: a queue stands still while what was parked in it is put back. The rules' field 'still' holds for each who does
-- that 'token until', one behind the other, so that each ends only his own; one who has died ends by himself.

-- Until when somebody wants it to stand still; 0 if nobody does.
local function still_until(text)
  local latest = 0
  for ends in string.gmatch(text or '', '%S+ (%d+)') do
    latest = math.max(latest, tonumber(ends))
  end
  return latest
end
